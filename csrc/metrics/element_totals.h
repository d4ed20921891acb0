// SPDX-License-Identifier: Apache-2.0
//
// What the elements of an update add, where each of them stands for itself: the numbers of a
// running value, and rows of which only the results are known and not the logits, as fused losses
// give them. For the CPU and the kernels, so it includes nothing but the state.
#pragma once

#include "metrics/element_batch.h"
#include "metrics/metric_state.h"

namespace pig::metrics {

PIG_SHARED_INLINE double where(bool mask, double value) { return mask ? value : 0; }

/// Widens a range to a value that is usable.
PIG_SHARED_INLINE void widen_if(bool usable, double value, double& min, double& max) {
  const double low = usable ? value : infinity();
  const double high = usable ? value : -infinity();
  min = low < min ? low : min;
  max = high > max ? high : max;
}

/// What the numbers of a running value add: those that are finite and have a weight above 0, each
/// less a shift that is the same for all of an update.
template <typename Count>
struct ValueTotalsOf {
  Count count;
  Count nonfinite;       ///< numbers that are not finite, or whose weight is no finite number >= 0
  double nonfinite_sum;  ///< the sum of one number is the number
  double weight;
  double sum;
  double squares;
  double min;
  double max;

  static constexpr int kCounts = 2, kReals = 6;
  PIG_SHARED_INLINE static constexpr Merge merge_of(int real) {
    return real == 4 ? Merge::kLeast : real == 5 ? Merge::kGreatest : Merge::kSum;
  }
  /// What no number at all adds.
  PIG_SHARED_INLINE static ValueTotalsOf none() {
    return {0, 0, 0, 0, 0, 0, infinity(), -infinity()};
  }
};
using ValueTotals = ValueTotalsOf<U64>;

// --- an element ---

/// A weight of 0 leaves the value out, whatever it is: a mask can be a weight.
template <typename Count>
PIG_SHARED_INLINE void add_value(double value, double weight, double shift,
                                 ValueTotalsOf<Count>& totals) {
  // Without branches: the kernels have no registers to spare.
  const bool usable = is_finite(value) & is_finite(weight) & (weight > 0);
  const double counted = where(usable, weight);
  const double distance = where(usable, value - shift);
  totals.count += usable ? 1 : 0;
  totals.weight += counted;
  totals.sum += counted * distance;
  totals.squares += counted * distance * distance;
  widen_if(usable, value, totals.min, totals.max);
  if (!(!usable & (weight != 0))) return;
  ++totals.nonfinite;
  totals.nonfinite_sum += is_finite(value) ? not_a_number() : value;
}

/// What numbers without weights add, all of which are finite, in a format whose numbers `Number`
/// holds exactly: the same as above in fewer instructions.
template <typename Number>
struct PlainValues {
  double sum = 0, squares = 0;
  Number min = static_cast<Number>(infinity()), max = -static_cast<Number>(infinity());

  PIG_SHARED_INLINE void add(Number number, double shift) {
    const double distance = static_cast<double>(number) - shift;
    sum += distance;
    squares += distance * distance;
    min = lesser(min, number);
    max = greater(max, number);
  }
  template <typename Count>
  PIG_SHARED_INLINE void add_to(ValueTotalsOf<Count>& totals, Count count) const {
    totals.count += count;
    totals.weight += count;
    totals.sum += sum;
    totals.squares += squares;
    totals.min = lesser(totals.min, static_cast<double>(min));
    totals.max = greater(totals.max, static_cast<double>(max));
  }
};

/// A row's numbers by RowOperand; those that were not given mean nothing. `batch` has the k of
/// which something is known: all where there is a rank, 1 where it is known whether the row is
/// correct. Its kind of loss is per row or none.
template <typename Count>
PIG_SHARED_INLINE void add_row_values(const Batch& batch, const ElementBatch& rows,
                                      const double (&row)[kRowOperands], TotalsOf<Count>& totals) {
  const bool has_rank = rows.operands[kRowRank].data != nullptr;
  const bool has_correct = rows.operands[kRowCorrect].data != nullptr;
  const bool is_masked = row[kRowMask] == 0;
  bool usable = !is_masked && is_finite(row[kRowWeight]);
  if (has_rank) usable = usable && row[kRowRank] >= 0;
  if (has_correct) usable = usable && (row[kRowCorrect] == 0 || row[kRowCorrect] == 1);
  totals.ignored += is_masked ? 1 : 0;
  totals.invalid += !is_masked && !usable ? 1 : 0;
  const double weight = where(usable, row[kRowWeight]);
  totals.count += usable ? 1 : 0;
  totals.weight += weight;
  const double rank = has_rank ? row[kRowRank] : 1 - row[kRowCorrect];
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int i = 0; i < kMaxTopk; ++i) {
    if (batch.topk[i] == 0) break;
    totals.correct[i] += where(rank < static_cast<double>(batch.topk[i]), weight);
  }
  if (rows.operands[kRowEntropy].data != nullptr) {
    const bool is_known = usable && is_finite(row[kRowEntropy]);
    totals.entropy_sum += where(is_known, row[kRowEntropy] * weight);
    totals.entropy_weight += where(is_known, weight);
  }
  if (batch.loss_kind != kLossPerRow) return;
  const bool is_known = usable && is_finite(row[kRowLoss]);
  totals.loss_sum += where(is_known, row[kRowLoss] * weight);
  totals.loss_weight += where(is_known, weight);
  totals.nonfinite_losses += usable && !is_known ? 1 : 0;
}

// --- all of an update ---

/// Adds the values of an update. `ema`: how much of the moving average remains; 0 where there is
/// none.
PIG_SHARED void fold_values(const ValueTotals& totals, double shift, double ema, Scalar& scalar) {
  ++scalar.updates;
  scalar.nonfinite += totals.nonfinite;
  if (totals.count == 0) {
    if (totals.nonfinite != 0) scalar.last = totals.nonfinite_sum;
    return;
  }
  const double distance = totals.sum / totals.weight;
  const double mean = shift + distance;
  double m2 = totals.squares - totals.sum * distance;
  if (m2 < 0) m2 = 0;  // by rounding
  if (scalar.weight > 0) {
    // Chan, Golub, LeVeque: Algorithms for Computing the Sample Variance (1983).
    const double apart = mean - scalar.sum / scalar.weight;
    m2 += apart * apart * (scalar.weight * totals.weight / (scalar.weight + totals.weight));
  }
  scalar.m2 += m2;
  widen(totals.min, scalar.count == 0, scalar.min, scalar.max);
  widen(totals.max, false, scalar.min, scalar.max);
  scalar.count += totals.count;
  scalar.weight += totals.weight;
  scalar.sum += shift * totals.weight + totals.sum;
  scalar.last = mean;
  if (is_finite(mean)) {
    ++scalar.means;
    scalar.ema = ema * scalar.ema + (1 - ema) * mean;
  }
}

/// Adds an update of a single number.
PIG_SHARED void fold_number(double value, double ema, Scalar& scalar) {
  ValueTotals totals{};
  if (is_finite(value)) {
    totals.count = 1;
    totals.weight = 1;
    totals.min = totals.max = value;
  } else {
    totals.nonfinite = 1;
    totals.nonfinite_sum = value;
  }
  fold_values(totals, value, ema, scalar);
}

}  // namespace pig::metrics
