// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>

namespace pig::metrics {

// exp(x) as 2^n * 2^f with f between -1/2 and 1/2, without a branch or a call, so loops with it are
// vectorised. Adding and subtracting kRound rounds to whole numbers; the sum has n in its low bits.
// exp(0) is exactly 1.

/// For x of at most 87 in magnitude.
[[gnu::always_inline]] inline float exponential(float x) {
  constexpr float kRound = 0x1.8p23f, kLog2e = 0x1.715476p0f;
  const float sum = x * kLog2e + kRound;
  const float f = x * kLog2e - (sum - kRound);
  // 2^f, with a relative error of 1e-7 at most: the least for a polynomial that is 1 at 0.
  float p = 0.0013264727f;
  p = p * f + 0.009671513f;
  p = p * f + 0.055507336f;
  p = p * f + 0.24022242f;
  p = p * f + 0.693147f;
  p = p * f + 1.0f;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(sum) << 23));
}

/// For x of at most 708 in magnitude, to a rounding or two.
[[gnu::always_inline]] inline double exponential(double x) {
  constexpr double kRound = 0x1.8p52, kLog2e = 0x1.71547652b82fep0;
  constexpr double kLn2High = 0x1.62e42fefa38p-1, kLn2Low = 0x1.ef35793c7673p-45;
  const double sum = x * kLog2e + kRound;
  const double n = sum - kRound;
  const double f = x - n * kLn2High - n * kLn2Low;
  double p = 1.0 / 6227020800;  // 1/13!, and so on
  p = p * f + 1.0 / 479001600;
  p = p * f + 1.0 / 39916800;
  p = p * f + 1.0 / 3628800;
  p = p * f + 1.0 / 362880;
  p = p * f + 1.0 / 40320;
  p = p * f + 1.0 / 5040;
  p = p * f + 1.0 / 720;
  p = p * f + 1.0 / 120;
  p = p * f + 1.0 / 24;
  p = p * f + 1.0 / 6;
  p = p * f + 1.0 / 2;
  p = p * f + 1.0;
  p = p * f + 1.0;
  return std::bit_cast<double>(std::bit_cast<uint64_t>(p) + (std::bit_cast<uint64_t>(sum) << 52));
}

}  // namespace pig::metrics
