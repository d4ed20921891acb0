// SPDX-License-Identifier: Apache-2.0
//
// What the elements of an update add, where each of them stands for itself: the numbers of a
// running value, rows of which only the results are known and not the logits, as fused losses give
// them, and pairs of a prediction and a target. For the CPU and the kernels, so it includes nothing
// but the state.
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

// --- what is found ---

#define PIG_MEMBER(type, name, merge) type name;
#define PIG_IS_REAL(type, name, merge) +PIG_REALS_IN_##type
#define PIG_REALS_IN_Count 0
#define PIG_REALS_IN_Real 1
#define PIG_IS_COUNT(type, name, merge) +1 - PIG_REALS_IN_##type
#define PIG_MERGE(type, name, merge) Merge::merge,
#define PIG_NONE(type, name, merge) PIG_NONE_OF_##type(Merge::merge),
#define PIG_NONE_OF_Count(merge) \
  Count {}
#define PIG_NONE_OF_Real(merge) neutral_of(merge)

/// A struct of these fields, F(type, name, merge); `none()` is what no element at all adds.
#define PIG_TOTALS(Name, FIELDS)                                        \
  template <typename Count>                                             \
  struct Name {                                                         \
    using Real = double;                                                \
    FIELDS(PIG_MEMBER)                                                  \
    static constexpr int kCounts = 0 FIELDS(PIG_IS_COUNT);              \
    static constexpr int kReals = 0 FIELDS(PIG_IS_REAL);                \
    PIG_SHARED_INLINE static constexpr Merge merge_of(int real) {       \
      constexpr Merge merges[] = {FIELDS(PIG_MERGE)};                   \
      return merges[kCounts + real];                                    \
    }                                                                   \
    PIG_SHARED_INLINE static Name none() { return {FIELDS(PIG_NONE)}; } \
  };

// Sums of the finite values with a weight above 0, each less a shift that is the same for all of an
// update. `nonfinite`: values that are not finite, or whose weight is no finite number >= 0; the
// sum of one value is the value.
#define PIG_VALUE_FIELDS(F)    \
  F(Count, count, kSum)        \
  F(Count, nonfinite, kSum)    \
  F(Real, nonfinite_sum, kSum) \
  F(Real, weight, kSum)        \
  F(Real, sum, kSum) F(Real, squares, kSum) F(Real, min, kLeast) F(Real, max, kGreatest)
PIG_TOTALS(ValueTotalsOf, PIG_VALUE_FIELDS)
using ValueTotals = ValueTotalsOf<U64>;

// Pairs with a weight of 0 are ignored, those whose weight is no finite number >= 0 invalid, and
// `nonfinite` are those whose squared error or target is not finite. The sums are those of the
// others, weighted: absolute errors, their squares and the squares of these, targets less the
// shift, and their squares. The first range is that of the absolute errors.
#define PIG_PAIR_FIELDS(F)      \
  F(Count, count, kSum)         \
  F(Count, ignored, kSum)       \
  F(Count, invalid, kSum)       \
  F(Count, nonfinite, kSum)     \
  F(Real, weight, kSum)         \
  F(Real, absolute, kSum)       \
  F(Real, squares, kSum)        \
  F(Real, fourths, kSum)        \
  F(Real, target, kSum)         \
  F(Real, target_squares, kSum) \
  F(Real, min, kLeast)          \
  F(Real, max, kGreatest) F(Real, min_target, kLeast) F(Real, max_target, kGreatest)
PIG_TOTALS(PairTotalsOf, PIG_PAIR_FIELDS)
using PairTotals = PairTotalsOf<U64>;

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

template <typename Count>
PIG_SHARED_INLINE void add_pair(double prediction, double target, double weight, double shift,
                                PairTotalsOf<Count>& totals) {
  const double difference = prediction - target;
  const bool is_weight = is_finite(weight) && weight > 0;
  const bool usable = is_finite(difference * difference) && is_weight;
  const double counted = where(usable, weight);
  const double absolute = fabs(where(usable, difference));
  const double square = absolute * absolute;
  const double distance = where(usable, target - shift);
  totals.count += usable ? 1 : 0;
  totals.weight += counted;
  totals.absolute += counted * absolute;
  totals.squares += counted * square;
  totals.fourths += counted * square * square;
  totals.target += counted * distance;
  totals.target_squares += counted * distance * distance;
  widen_if(usable, absolute, totals.min, totals.max);
  widen_if(usable, target, totals.min_target, totals.max_target);
  if (usable) return;
  totals.ignored += weight == 0 ? 1 : 0;
  totals.invalid += !is_weight && weight != 0 ? 1 : 0;
  totals.nonfinite += is_weight ? 1 : 0;
}

// What elements without weights add, in a format whose numbers `Number` holds exactly: the same as
// above in fewer instructions. `probe` of an element is finite if it can be added here.

template <typename Number>
struct PlainValues {
  double sum = 0, squares = 0;
  Number min = static_cast<Number>(infinity()), max = -static_cast<Number>(infinity());

  PIG_SHARED_INLINE static Number probe(const Number (&numbers)[1]) { return numbers[0]; }
  PIG_SHARED_INLINE void add(const Number (&numbers)[1], double shift) {
    const double distance = static_cast<double>(numbers[0]) - shift;
    sum += distance;
    squares += distance * distance;
    min = lesser(min, numbers[0]);
    max = greater(max, numbers[0]);
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

template <typename Number>
struct PlainPairs {
  double absolute = 0, squares = 0, fourths = 0, min = infinity(), max = -infinity();
  PlainValues<Number> target;

  PIG_SHARED_INLINE static double probe(const Number (&numbers)[2]) {
    const double error =
        static_cast<double>(numbers[kPrediction]) - static_cast<double>(numbers[kTarget]);
    return sizeof(Number) == sizeof(double) ? error * error : error;  // a float's is finite then
  }
  PIG_SHARED_INLINE void add(const Number (&numbers)[2], double shift) {
    const double error =
        fabs(static_cast<double>(numbers[kPrediction]) - static_cast<double>(numbers[kTarget]));
    const double square = error * error;
    absolute += error;
    squares += square;
    fourths += square * square;
    min = error < min ? error : min;
    max = error > max ? error : max;
    target.add({numbers[kTarget]}, shift);
  }
  template <typename Count>
  PIG_SHARED_INLINE void add_to(PairTotalsOf<Count>& totals, Count count) const {
    totals.count += count;
    totals.weight += count;
    totals.absolute += absolute;
    totals.squares += squares;
    totals.fourths += fourths;
    totals.target += target.sum;
    totals.target_squares += target.squares;
    totals.min = lesser(totals.min, min);
    totals.max = greater(totals.max, max);
    totals.min_target = lesser(totals.min_target, static_cast<double>(target.min));
    totals.max_target = greater(totals.max_target, static_cast<double>(target.max));
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

/// The running values that a regression is made of: the first ones of its state.
enum RegressionSlot : int { kSquaredError, kAbsoluteError, kTargetValue, kRegressionSlots };

/// Adds the pairs of an update. `ema` as in `fold_values`.
PIG_SHARED void fold_pairs(const PairTotals& totals, double shift, double ema, State& state) {
  Totals rows{};
  rows.count = totals.count;
  rows.ignored = totals.ignored;
  rows.invalid = totals.invalid;
  rows.nonfinite_rows = totals.nonfinite;
  rows.weight = totals.weight;
  add_update(rows, state);
  const auto fold = [&](RegressionSlot slot, double of, double sum, double squares, double min,
                        double max) {
    fold_values({totals.count, 0, 0, totals.weight, sum, squares, min, max}, of, ema,
                state.scalars[slot]);
  };
  fold(kSquaredError, 0, totals.squares, totals.fourths, totals.min * totals.min,
       totals.max * totals.max);
  fold(kAbsoluteError, 0, totals.absolute, totals.squares, totals.min, totals.max);
  fold(kTargetValue, shift, totals.target, totals.target_squares, totals.min_target,
       totals.max_target);
}

}  // namespace pig::metrics
