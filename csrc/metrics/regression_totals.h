// SPDX-License-Identifier: Apache-2.0
//
// What pairs of a prediction and a target add. For the CPU and the kernels, so it includes nothing
// but the state.
#pragma once

#include "metrics/metric_state.h"
#include "metrics/value_totals.h"

namespace pig::metrics {

/// The running values that a regression is made of: the first ones of its state.
enum RegressionSlot : int { kSquaredError, kAbsoluteError, kTargetValue, kRegressionSlots };

/// What one update, or a part of its pairs, adds.
template <typename Count>
struct RegressionTotalsOf {
  Count count;
  Count ignored;    ///< pairs with a weight of 0
  Count invalid;    ///< pairs whose weight is no finite number >= 0
  Count nonfinite;  ///< pairs whose squared error or target is not finite
  // Of the others, weighted:
  double weight;
  double absolute;
  double squares;  ///< of the errors
  double fourths;  ///< squares of the squares
  double target;   ///< less the shift
  double target_squares;
  double min;  ///< of the absolute errors
  double max;
  double min_target;
  double max_target;
};

using RegressionTotals = RegressionTotalsOf<U64>;

template <typename Count>
PIG_SHARED void add_pair(double prediction, double target, double weight, double shift,
                         RegressionTotalsOf<Count>& totals) {
  if (weight == 0) {
    ++totals.ignored;
    return;
  }
  if (!is_finite(weight) || weight < 0) {
    ++totals.invalid;
    return;
  }
  const double error = prediction - target;
  const double square = error * error;
  if (!is_finite(square)) {
    ++totals.nonfinite;
    return;
  }
  const bool first = totals.count++ == 0;
  const double absolute = error < 0 ? -error : error;
  widen(absolute, first, totals.min, totals.max);
  widen(target, first, totals.min_target, totals.max_target);
  const double distance = target - shift;
  totals.weight += weight;
  totals.absolute += weight * absolute;
  totals.squares += weight * square;
  totals.fourths += weight * square * square;
  totals.target += weight * distance;
  totals.target_squares += weight * distance * distance;
}

/// Both with the same shift.
PIG_SHARED void add_totals(RegressionTotals& into, const RegressionTotals& part) {
  if (part.count != 0) {
    const bool first = into.count == 0;
    widen(part.min, first, into.min, into.max);
    widen(part.max, false, into.min, into.max);
    widen(part.min_target, first, into.min_target, into.max_target);
    widen(part.max_target, false, into.min_target, into.max_target);
  }
  into.count += part.count;
  into.ignored += part.ignored;
  into.invalid += part.invalid;
  into.nonfinite += part.nonfinite;
  into.weight += part.weight;
  into.absolute += part.absolute;
  into.squares += part.squares;
  into.fourths += part.fourths;
  into.target += part.target;
  into.target_squares += part.target_squares;
}

/// Adds what all pairs of an update gave. `ema` as in `fold_values`.
PIG_SHARED void fold_regression(const RegressionTotals& totals, double shift, double ema,
                                State& state) {
  ++state.updates;
  state.count += totals.count;
  state.ignored += totals.ignored;
  state.invalid += totals.invalid;
  state.nonfinite_rows += totals.nonfinite;
  state.weight += totals.weight;
  if (state.first_nonfinite_update == 0 && totals.nonfinite != 0)
    state.first_nonfinite_update = state.updates;
  ValueTotals values{};
  values.count = totals.count;
  values.weight = totals.weight;
  values.sum = totals.squares;
  values.squares = totals.fourths;
  values.min = totals.min * totals.min;
  values.max = totals.max * totals.max;
  fold_values(values, 0, ema, state.scalars[kSquaredError]);
  values.sum = totals.absolute;
  values.squares = totals.squares;
  values.min = totals.min;
  values.max = totals.max;
  fold_values(values, 0, ema, state.scalars[kAbsoluteError]);
  values.sum = totals.target;
  values.squares = totals.target_squares;
  values.min = totals.min_target;
  values.max = totals.max_target;
  fold_values(values, shift, ema, state.scalars[kTargetValue]);
}

}  // namespace pig::metrics
