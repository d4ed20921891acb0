// SPDX-License-Identifier: Apache-2.0
//
// What rows add of which only the results are known, as fused losses give them, and not the logits.
// For the CPU and the kernels, so it includes nothing but the state.
#pragma once

#include "metrics/element_batch.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

/// The numbers of one row; those that were not given mean nothing.
struct RowValues {
  double loss;
  double correct;  ///< 1 or 0
  double rank;     ///< from 0
  double entropy;
  double weight;
  double mask;  ///< 0: the row is ignored
};

/// `batch` has the k of which something is known: all where there is a rank, 1 where it is known
/// whether the row is correct. Its kind of loss is per row or none.
template <typename Count>
PIG_SHARED void add_row_values(const Batch& batch, const ElementBatch& rows, const RowValues& row,
                               TotalsOf<Count>& totals) {
  if (row.mask == 0) {
    ++totals.ignored;
    return;
  }
  const bool has_rank = rows.operands[kRowRank].data != nullptr;
  const bool has_correct = rows.operands[kRowCorrect].data != nullptr;
  if (!is_finite(row.weight) || (has_rank && !(row.rank >= 0)) ||
      (has_correct && row.correct != 0 && row.correct != 1)) {
    ++totals.invalid;
    return;
  }
  ++totals.count;
  totals.weight += row.weight;
  const double rank = has_rank ? row.rank : 1 - row.correct;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int i = 0; i < kMaxTopk; ++i) {
    if (batch.topk[i] == 0) break;
    totals.correct[i] += rank < static_cast<double>(batch.topk[i]) ? row.weight : 0;
  }
  if (rows.operands[kRowEntropy].data != nullptr && is_finite(row.entropy)) {
    totals.entropy_sum += row.entropy * row.weight;
    totals.entropy_weight += row.weight;
  }
  if (batch.loss_kind != kLossPerRow) return;
  if (is_finite(row.loss)) {
    totals.loss_sum += row.loss * row.weight;
    totals.loss_weight += row.weight;
  } else {
    ++totals.nonfinite_losses;
  }
}

}  // namespace pig::metrics
