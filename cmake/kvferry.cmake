# One function per kind of target.

function(kvferry_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion -Wshadow
                                           -Wstrict-prototypes -Wmissing-prototypes)
  if(KVFERRY_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${KVFERRY_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${KVFERRY_SANITIZE})
  endif()
  if(KVFERRY_FUZZ)
    target_compile_options(${target} PRIVATE -fsanitize=fuzzer-no-link)
  endif()
endfunction()

# The objects once; from them the shared library (public symbols only), the static one, and a
# testing library that shows private symbols to the tests.
function(kvferry_library name)
  add_library(${name}_objects OBJECT ${ARGN})
  kvferry_warnings(${name}_objects)
  set_target_properties(${name}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                   C_VISIBILITY_PRESET hidden)
  target_compile_definitions(${name}_objects PRIVATE _GNU_SOURCE)
  target_include_directories(${name}_objects PRIVATE ${PROJECT_SOURCE_DIR}/include
                                                     ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(${name}_objects PRIVATE ${KVFERRY_NEEDS})
  foreach(kind shared static)
    string(TOUPPER ${kind} type)
    add_library(${name}_${kind} ${type} $<TARGET_OBJECTS:${name}_objects>)
    set_target_properties(${name}_${kind} PROPERTIES OUTPUT_NAME ${name} EXPORT_NAME ${kind})
    target_include_directories(${name}_${kind}
      PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${name}_${kind} PRIVATE ${KVFERRY_NEEDS})
    if(KVFERRY_SANITIZE)
      target_link_options(${name}_${kind} PRIVATE -fsanitize=${KVFERRY_SANITIZE})
    endif()
  endforeach()
  set(map ${PROJECT_SOURCE_DIR}/src/lib${name}.map)
  set_target_properties(${name}_shared PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR} LINK_DEPENDS ${map})
  target_link_options(${name}_shared PRIVATE LINKER:--version-script=${map})
  if(NOT KVFERRY_SANITIZE) # clang leaves a sanitizer's own symbols to the program
    target_link_options(${name}_shared PRIVATE LINKER:--no-undefined)
  endif()
endfunction()

# kvferry_test(source [NAME name] [LABELS label...] [TIMEOUT seconds] [ARGS argument...]):
# a test program, linked to the testing (static) library and cmocka, in a process of its own.
function(kvferry_test source)
  cmake_parse_arguments(test "" "NAME;TIMEOUT" "LABELS;ARGS" ${ARGN})
  if(NOT test_NAME)
    cmake_path(GET source STEM stem)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME layer)
    set(test_NAME ${layer}_${stem})
  endif()
  if(NOT test_TIMEOUT)
    set(test_TIMEOUT 120)
  endif()
  if(KVFERRY_SANITIZE)
    math(EXPR test_TIMEOUT "5 * ${test_TIMEOUT}")
  endif()
  add_executable(${test_NAME} ${source})
  kvferry_warnings(${test_NAME})
  target_compile_definitions(${test_NAME} PRIVATE _GNU_SOURCE
                                                  KVFERRY_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(${test_NAME} PRIVATE ${PROJECT_SOURCE_DIR}/src
                                                  ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${test_NAME} PRIVATE kvferry_static PkgConfig::cmocka ${KVFERRY_NEEDS})
  add_test(NAME ${test_NAME} COMMAND ${test_NAME} ${test_ARGS})
  set_tests_properties(${test_NAME} PROPERTIES TIMEOUT ${test_TIMEOUT} LABELS "${test_LABELS}")
endfunction()
