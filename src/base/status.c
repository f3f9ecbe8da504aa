/* SPDX-License-Identifier: Apache-2.0 */
#include <kvferry/status.h>
#include <kvferry/version.h>

#include <stdlib.h>

#include <kvferry/layout.h>

#define TEXT(value) #value
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *kvferry_version(void)
{
    return VERSION(KVFERRY_VERSION_MAJOR, KVFERRY_VERSION_MINOR, KVFERRY_VERSION_PATCH);
}

const char *kvferry_status_name(kvferry_status status)
{
    switch (status) {
#define NAME(code, number, name, sentence)                                                         \
    case code:                                                                                     \
        return name;
        KVFERRY_STATUS_TABLE(NAME)
#undef NAME
    }
    return "unknown";
}

const char *kvferry_status_describe(kvferry_status status)
{
    switch (status) {
#define SENTENCE(code, number, name, sentence)                                                     \
    case code:                                                                                     \
        return sentence;
        KVFERRY_STATUS_TABLE(SENTENCE)
#undef SENTENCE
    }
    return "a status that this version does not know";
}

void kvferry_free(void *data) { free(data); }
