/* SPDX-License-Identifier: Apache-2.0 */
/* What may become of each byte of a target, from the contract's sentences, a byte at a time. Only
 * for small set-ups; shares no code with the oracle that it judges. */
#ifndef KVFERRY_RANDOM_CLASSIFY_H
#define KVFERRY_RANDOM_CLASSIFY_H

#include "naive.h"

typedef enum byte_class {
    BYTE_KEEPS = 0, /* must be what it was */
    BYTE_FREE = 1,  /* may change */
    BYTE_WANTED = 2 /* must be its value */
} byte_class;

typedef struct byte_judge byte_judge;

/* NULL: no memory. */
byte_judge *classifier_make(const kvferry_layout *const *sources, size_t source_count,
                            const kvferry_layout *target);
void classifier_free(byte_judge *classifier);

/* Whether two groups have a byte of one block id in common. */
bool classifier_share(const byte_judge *classifier, uint32_t a, uint32_t b);

/* Raises classes[segment][byte] by what the request allows and wants; start from zeros. */
void classifier_request(const byte_judge *classifier, const kvferry_request *request,
                        unsigned char *const *classes);

#endif
