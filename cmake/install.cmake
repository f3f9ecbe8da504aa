# What `cmake --install` puts where: libraries, headers, pkg-config file, CMake package, command,
# model configs, man pages, documents, examples. Pages link to installed pages only (tests/install).

include(CMakePackageConfigHelpers)

set(KVFERRY_MODELS_DIR ${CMAKE_INSTALL_DATADIR}/kvferry/models)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/kvferry)

# Two export sets: a user of the shared library needs none of what the static one is linked with.
foreach(kind shared static)
  install(TARGETS kvferry_${kind} EXPORT kvferry_${kind}
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT kvferry_${kind} NAMESPACE kvferry:: DESTINATION ${package_dir}
          FILE kvferry-${kind}.cmake)
endforeach()
install(DIRECTORY include/kvferry DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)

configure_package_config_file(cmake/kvferry-config.cmake.in kvferry-config.cmake
                              INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(kvferry-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kvferry-config.cmake
              ${PROJECT_BINARY_DIR}/kvferry-config-version.cmake
        DESTINATION ${package_dir})

# Libs.private and not Requires.private: who links the shared library needs no -dev packages of
# the libraries below it. The paths are relative to the file, so an install may be moved.
set(private_libs "")
foreach(module ${KVFERRY_MODULES})
  list(APPEND private_libs ${${module}_LDFLAGS})
endforeach()
list(APPEND private_libs -pthread)
foreach(library ${CMAKE_DL_LIBS})
  list(APPEND private_libs -l${library})
endforeach()
list(JOIN private_libs " " KVFERRY_PRIVATE_LIBS)
set(pkgconfig_dir ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${pkgconfig_dir}
           OUTPUT_VARIABLE KVFERRY_PREFIX_FROM_PC)
configure_file(cmake/kvferry.pc.in kvferry.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvferry.pc DESTINATION ${pkgconfig_dir})

if(TARGET kvferry_command)
  cmake_path(RELATIVE_PATH CMAKE_INSTALL_PREFIX
             BASE_DIRECTORY ${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}
             OUTPUT_VARIABLE prefix_from_bin)
  set_target_properties(kvferry_command PROPERTIES
    INSTALL_RPATH "$ORIGIN/${prefix_from_bin}/${CMAKE_INSTALL_LIBDIR}")
  install(TARGETS kvferry_command RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY models/ DESTINATION ${KVFERRY_MODELS_DIR} FILES_MATCHING PATTERN *.json)

file(GLOB man_pages CONFIGURE_DEPENDS man/*.[1-7])
foreach(page ${man_pages})
  cmake_path(GET page EXTENSION LAST_ONLY section)
  string(SUBSTRING ${section} 1 1 section)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section})
endforeach()
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md)
install(DIRECTORY examples DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md PATTERN *.c)
install(FILES README.md LICENSE CHANGELOG.md CONTRIBUTING.md SECURITY.md
        DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The wheel: the library, in one file, beside the Python modules; the command, which has the library in itself, and
# the models beside it.
if(SKBUILD)
  install(FILES $<TARGET_FILE:kvferry_shared> DESTINATION kvferry RENAME libkvferry.so
          COMPONENT python)
  install(PROGRAMS $<TARGET_FILE:kvferry_command> DESTINATION kvferry/_command COMPONENT python)
  install(DIRECTORY models DESTINATION kvferry/_command COMPONENT python FILES_MATCHING PATTERN *.json)
endif()
