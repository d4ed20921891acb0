// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

/// What all rows of a batch in host memory add. Confusion counts go straight to `state`, by atomic
/// additions; nothing else in it is touched.
///
/// Batches of a few megabytes and more are shared among up to `max_threads` threads, which have
/// ended when this returns. The sums do not depend on how many there were.
Totals scan_on_cpu(const Batch& batch, State& state, int max_threads);

/// Bytes of logits that the scan reads.
U64 bytes_of(const Batch& batch);

}  // namespace pig::metrics
