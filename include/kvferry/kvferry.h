/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

/*
 * kvferry carries a request's cache state from the workers that prefilled its prompt to the workers
 * that decode it. In this order:
 *
 *   status.h   what calls answer                report.h   why something was refused
 *   layout.h   what caches a worker holds       model.h    the same, from a model's config
 *   plan.h     who sends what to whom; copies   engine.h   moving bytes
 *   node.h     all of it between running workers
 */
#include <kvferry/engine.h>
#include <kvferry/layout.h>
#include <kvferry/model.h>
#include <kvferry/node.h>
#include <kvferry/plan.h>
#include <kvferry/report.h>
#include <kvferry/status.h>
#include <kvferry/version.h>

#endif
