/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_VERSION_H
#define KVFERRY_VERSION_H

/* The build reads the version from these three lines. */
#define KVFERRY_VERSION_MAJOR 0
#define KVFERRY_VERSION_MINOR 1
#define KVFERRY_VERSION_PATCH 0

#if defined(KVFERRY_STATIC)
#define KVFERRY_API
#elif defined(__GNUC__)
#define KVFERRY_API __attribute__((visibility("default")))
#else
#define KVFERRY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The version of the library that is loaded, "major.minor.patch". Static storage; any thread. */
KVFERRY_API const char *kvferry_version(void);

#ifdef __cplusplus
}
#endif
#endif
