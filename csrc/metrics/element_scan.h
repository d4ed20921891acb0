// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "metrics/binary_totals.h"
#include "metrics/element_batch.h"
#include "metrics/regression_totals.h"
#include "metrics/row_values.h"
#include "metrics/value_totals.h"

namespace pig::metrics {

// What all elements of a batch in host memory add, in one pass. Batches of many elements are shared
// among up to `max_threads` threads, which are done when these return. The sums do not depend on
// how many there were.

ValueTotals scan_values(const ElementBatch& batch, double shift, int max_threads);

RegressionTotals scan_pairs(const ElementBatch& batch, double shift, int max_threads);

/// `batch` says which k and what loss the rows have.
Totals scan_rows(const Batch& batch, const ElementBatch& rows, int max_threads);

/// Adds to `tail` what goes there.
Totals scan_labels(const BinaryOptions& options, const ElementBatch& batch, double* tail,
                   int max_threads);

/// Whether a scan takes longer than giving the GIL away and getting it back.
bool is_long(const ElementBatch& batch);

}  // namespace pig::metrics
