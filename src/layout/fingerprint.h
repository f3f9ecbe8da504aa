/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_LAYOUT_FINGERPRINT_H
#define KVFERRY_LAYOUT_FINGERPRINT_H

#include "layout/layout.h"

/* Fills layout->digests. KVFERRY_OK, KVFERRY_NO_MEMORY, or KVFERRY_INTERNAL if libsodium cannot be
 * used at all. */
kvferry_status layout_make_fingerprint(kvferry_layout *layout);

#endif
