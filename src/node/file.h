/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_NODE_FILE_H
#define KVFERRY_NODE_FILE_H

#include <sys/stat.h>

#include "base/base.h"

/* Reads a whole regular file of at most `maximum` bytes; *text is the caller's to free and ends
 * with a zero byte that is not counted. KVFERRY_IO with a reason (file_failed), KVFERRY_NO_MEMORY.
 */
kvferry_status node_file_read(const char *path, size_t maximum, char **text, size_t *size,
                              struct stat *about, kvferry_report *report);

/* What a context of ZeroMQ takes when its first sockets are made; without them it ends the process. */
enum { NODE_ZMQ_DESCRIPTORS = 16 };

/* Whether the process may open so many more descriptors; false, with a reason (descriptors). */
bool node_file_descriptors(int count, kvferry_report *report);

#endif
