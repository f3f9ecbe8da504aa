/* SPDX-License-Identifier: Apache-2.0 */
/* cmocka and what it needs, for every test. */
#ifndef KVFERRY_TEST_H
#define KVFERRY_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#endif
