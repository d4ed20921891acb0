// SPDX-License-Identifier: Apache-2.0
//
// What an accumulator's state is made of: words of 8 bytes, in this order. The C++ structs
// (csrc/metrics/metric_state.h), Python's dtypes (state.py), and how parts of a state are merged are
// made from these lines, one each. It lies in the package, because Python reads it even where there
// is no native module. Behind the State lies the confusion matrix, if the options ask for one.
//
// PIG_LIMIT(name, value)         a constant
// PIG_SCALAR(type, name, merge)  a field of Scalar
// PIG_ROWS(type, name, merge)    a field of State to which each row adds: it is also what an update
//                                has found (TotalsOf); in square brackets how many there are
// PIG_STATE(type, name, merge)   another field of State
//
// `merge` says how the fields of several ranks become one: sum, most, least, mean; `average`, a
// moving average that began at 0; `squares`, of distances from the mean; or `none`. In brackets are
// the fields of which one is not 0 where there is a value. What a window shows is the difference of
// two sums; what is not a sum is as it is now, and so is the number of values of a moving average.

#ifdef PIG_LIMIT
PIG_LIMIT(kMaxTopk, 8)
PIG_LIMIT(kMaxScalars, 32)
#endif

// A running value that update_scalar takes. The sums are of finite numbers.
#ifdef PIG_SCALAR
PIG_SCALAR(U64, updates, most)         // since the reset; the newest update's number
PIG_SCALAR(U64, count, sum)            // finite numbers
PIG_SCALAR(U64, nonfinite, sum)        // others
PIG_SCALAR(U64, means, sum)            // updates whose mean was finite
PIG_SCALAR(double, weight, sum)
PIG_SCALAR(double, sum, sum)           // weighted
PIG_SCALAR(double, m2, squares)        // weighted squares of the distances from the mean
PIG_SCALAR(double, min, least(count))
PIG_SCALAR(double, max, most(count))
PIG_SCALAR(double, last, mean(count, nonfinite))  // the last update's mean, finite or not
PIG_SCALAR(double, ema, average(means))           // of the finite means
#undef PIG_SCALAR
#endif

#if defined(PIG_STATE) || defined(PIG_ROWS)
#ifndef PIG_STATE
#define PIG_STATE(type, name, merge)
#endif
#ifndef PIG_ROWS
#define PIG_ROWS(type, name, merge)
#endif
PIG_STATE(U64, updates, most)  // since the accumulator was made; the newest update's number
PIG_STATE(U64, resets, none)   // tell a snapshot from before a reset
// From here on all is zero after a reset.
PIG_ROWS(U64, count, sum)           // rows that count
PIG_ROWS(U64, ignored, sum)         // rows whose target is ignore_index
PIG_ROWS(U64, invalid, sum)         // rows whose target is no class, or whose weight is not finite
PIG_ROWS(U64, nonfinite_rows, sum)
PIG_ROWS(U64, nonfinite_losses, sum)
PIG_STATE(U64, first_nonfinite_update, least(first_nonfinite_update))  // 0: none
PIG_ROWS(double, weight, sum)       // of the rows that count
PIG_ROWS(double, loss_sum, sum)     // of finite losses, weighted
PIG_ROWS(double, loss_weight, sum)
PIG_STATE(U64, losses, sum)         // updates that had a loss
PIG_STATE(U64, finite_losses, sum)  // those of them whose mean was finite
PIG_STATE(double, loss_min, least(finite_losses))
PIG_STATE(double, loss_max, most(finite_losses))
PIG_STATE(double, loss_last, mean(losses))
PIG_STATE(double, loss_ema, average(finite_losses))  // of the finite means
PIG_ROWS(double, nll_sum, sum)      // of finite negative log-likelihoods, weighted
PIG_ROWS(double, nll_weight, sum)
PIG_ROWS(double, entropy_sum, sum)  // of finite entropies, weighted
PIG_ROWS(double, entropy_weight, sum)
PIG_ROWS(double[kMaxTopk], correct, sum)          // weight of the rows with a rank below k
PIG_STATE(double[kMaxTopk], correct_weight, sum)  // of the rows of which that is known
PIG_STATE(Scalar[kMaxScalars], scalars, none)
#undef PIG_STATE
#undef PIG_ROWS
#endif
