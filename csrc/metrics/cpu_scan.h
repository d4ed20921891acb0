// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "metrics/metric_kernel.h"

namespace pig::metrics {

/// Where a row of a batch counts in the confusion matrix.
struct ConfusionCell {
  int target = -1;  ///< -1: the row does not count
  int predicted = 0;
  double weight = 0;
};

/// What all rows of a batch in host memory add. `cells` has one element per row if the batch is for
/// a confusion matrix, and is filled.
///
/// Batches of a few megabytes and more are shared among up to `max_threads` threads of a pool. The
/// sums do not depend on how many there were.
Totals scan_on_cpu(const Batch& batch, std::vector<ConfusionCell>& cells, int max_threads);

/// Whether a scan takes longer than giving the GIL away and getting it back.
bool is_long(const Batch& batch);

// What all elements of an update in host memory add, in one pass. Those of many elements are shared
// among up to `max_threads` threads, which are done when these return. The sums do not depend on
// how many there were.

/// Of ValuesParameters and RowsParameters.
template <typename Update>
typename Update::template Found<U64> scan_elements(const Update& update, double shift,
                                                   int max_threads);

/// Whether a scan takes longer than giving the GIL away and getting it back.
bool is_long(const ElementBatch& batch);

}  // namespace pig::metrics
