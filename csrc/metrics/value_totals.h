// SPDX-License-Identifier: Apache-2.0
//
// What the values of one update add to a running value. For the CPU and the kernels, so it includes
// nothing but the state.
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

/// Sums of the finite values with a weight above 0, each less a shift that is the same for all of
/// an update.
template <typename Count>
struct ValueTotalsOf {
  Count count;
  Count nonfinite;       ///< values that are not finite, or whose weight is no finite number >= 0
  double nonfinite_sum;  ///< of them: that of one value is the value
  double weight;
  double sum;
  double squares;
  double min;
  double max;
};

using ValueTotals = ValueTotalsOf<U64>;

PIG_SHARED double not_a_number() {
  union {
    U64 u;
    double d;
  } both;
  both.u = 0x7FF8000000000000ull;
  return both.d;
}

/// A weight of 0 leaves the value out, whatever it is: a mask can be a weight.
template <typename Count>
PIG_SHARED void add_value(double value, double weight, double shift, ValueTotalsOf<Count>& totals) {
  if (weight == 0) return;
  if (!is_finite(value) || !is_finite(weight) || weight < 0) {
    ++totals.nonfinite;
    totals.nonfinite_sum += is_finite(value) ? not_a_number() : value;
    return;
  }
  widen(value, totals.count++ == 0, totals.min, totals.max);
  const double distance = value - shift;
  totals.weight += weight;
  totals.sum += weight * distance;
  totals.squares += weight * distance * distance;
}

/// Both with the same shift.
PIG_SHARED void add_totals(ValueTotals& into, const ValueTotals& part) {
  if (part.count != 0) {
    widen(part.min, into.count == 0, into.min, into.max);
    widen(part.max, false, into.min, into.max);
  }
  into.count += part.count;
  into.nonfinite += part.nonfinite;
  into.nonfinite_sum += part.nonfinite_sum;
  into.weight += part.weight;
  into.sum += part.sum;
  into.squares += part.squares;
}

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
  add_value(value, 1, value, totals);
  fold_values(totals, value, ema, scalar);
}

}  // namespace pig::metrics
