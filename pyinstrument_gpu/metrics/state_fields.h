// SPDX-License-Identifier: Apache-2.0
//
// What an accumulator's state is made of: words of 8 bytes, in this order. The C++ structs
// (csrc/metrics/metric_state.h) and Python's dtypes (state.py) are made from these lines, one each.
// It lies in the package, because Python reads it even where there is no native module. Behind the
// State lie its tails: the confusion matrix and the bins, as far as the options ask for them.
//
// PIG_LIMIT(name, value)   a constant
// PIG_SCALAR(type, name)   a field of Scalar
// PIG_STATE(type, name)    a field of State; in square brackets behind the type, how many there are

#ifdef PIG_LIMIT
PIG_LIMIT(kMaxTopk, 8)
PIG_LIMIT(kMaxScalars, 32)
#endif

// A running value that update_scalar takes. The sums are of finite numbers.
#ifdef PIG_SCALAR
PIG_SCALAR(U64, updates)    // since the reset; the newest update's number
PIG_SCALAR(U64, count)      // finite numbers
PIG_SCALAR(U64, nonfinite)  // others
PIG_SCALAR(U64, means)      // updates whose mean was finite
PIG_SCALAR(double, weight)
PIG_SCALAR(double, sum)     // weighted
PIG_SCALAR(double, m2)      // weighted squares of the distances from the mean
PIG_SCALAR(double, min)
PIG_SCALAR(double, max)
PIG_SCALAR(double, last)    // the last update's mean, finite or not
PIG_SCALAR(double, ema)     // of the finite means, biased towards 0
#endif

#ifdef PIG_STATE
PIG_STATE(U64, updates)     // since the accumulator was made; the newest update's number
PIG_STATE(U64, resets)      // tell a snapshot from before a reset
// From here on all is zero after a reset.
PIG_STATE(U64, count)       // rows that count
PIG_STATE(U64, ignored)     // rows whose target is ignore_index
PIG_STATE(U64, invalid)     // rows whose target is no class, or whose weight is not finite
PIG_STATE(U64, nonfinite_rows)
PIG_STATE(U64, nonfinite_losses)
PIG_STATE(U64, first_nonfinite_update)  // 0: none
PIG_STATE(double, weight)               // of the rows that count
PIG_STATE(double, loss_sum)             // of finite losses, weighted
PIG_STATE(double, loss_weight)
PIG_STATE(U64, losses)                  // updates that had a loss
PIG_STATE(U64, finite_losses)           // those of them whose mean was finite
PIG_STATE(double, loss_min)
PIG_STATE(double, loss_max)
PIG_STATE(double, loss_last)
PIG_STATE(double, loss_ema)             // of the finite means, biased towards 0
PIG_STATE(double, nll_sum)              // of finite negative log-likelihoods, weighted
PIG_STATE(double, nll_weight)
PIG_STATE(double, entropy_sum)          // of finite entropies, weighted
PIG_STATE(double, entropy_weight)
PIG_STATE(double[kMaxTopk], correct)         // weight of the rows with a rank below k
PIG_STATE(double[kMaxTopk], correct_weight)  // of the rows of which that is known
PIG_STATE(Scalar[kMaxScalars], scalars)
#endif
