// SPDX-License-Identifier: Apache-2.0
//
// The numbers that tensors are made of, as the kernels read them and compute with them.
#pragma once

#include "metrics/metric_kernel.h"

namespace pig::metrics {
namespace {

/// What a format stores, and the precision in which it is computed.
template <Format kFormat>
struct Numbers {
  using Stored = unsigned short;
  using Real = float;
  static __device__ float real(unsigned short bits) {
    return kFormat == kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
};

template <>
struct Numbers<kFloat32> {
  using Stored = float;
  using Real = float;
  static __device__ float real(float x) { return x; }
};

template <>
struct Numbers<kFloat64> {
  using Stored = double;
  using Real = double;
  static __device__ double real(double x) { return x; }
};

/// 2 to the x, by the instruction that CUDA's exp2f is made of, which is within 2 units in the last
/// place: errors of many powers are of both signs, and their sum is more exact than each.
__device__ float power_of(float x) {
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
#else
  return exp2f(x);
#endif
}

/// e to the x. One copy of it: it is long.
__device__ __noinline__ double power_of(double x) { return exp(x); }

/// Exponentials are powers with exponents in this unit: 1 over the logarithm of the base.
template <typename Real>
constexpr Real kPerUnit = static_cast<Real>(1.44269504088896341);
template <>
constexpr double kPerUnit<double> = 1;

__device__ float fused(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double fused(double a, double b, double c) { return fma(a, b, c); }

/// The greatest number that is less; of -infinity NaN, which no number is greater than either.
__device__ float next_below(float x) {
  if (x == 0) return -__int_as_float(1);
  const int bits = __float_as_int(x);
  return __int_as_float(x > 0 ? bits - 1 : bits + 1);
}

__device__ double next_below(double x) {
  if (x == 0) return -__longlong_as_double(1);
  const I64 bits = __double_as_longlong(x);
  return __longlong_as_double(x > 0 ? bits - 1 : bits + 1);
}

template <typename Real>
constexpr Real kLowest = static_cast<Real>(-3.402823466e38);
template <>
constexpr double kLowest<double> = -1.7976931348623157e308;

__device__ float infinity_of(float) { return __int_as_float(0x7F800000); }
__device__ double infinity_of(double) { return __longlong_as_double(0x7FF0000000000000LL); }

/// Converts an even count of numbers that were loaded together.
template <Format kFormat, int kCount>
__device__ void convert(const typename Numbers<kFormat>::Stored (&stored)[kCount],
                        typename Numbers<kFormat>::Real* numbers) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if constexpr (kFormat == kBfloat16) {  // of a word, two in one instruction each
      const unsigned word = reinterpret_cast<const unsigned*>(stored)[k / 2];
      numbers[k] = __int_as_float(static_cast<int>(k % 2 == 0 ? word << 16 : word & 0xFFFF0000u));
    } else {
      numbers[k] = Numbers<kFormat>::real(stored[k]);
    }
  }
}

template <Format kFormat>
struct FormatOf {
  static constexpr Format kIs = kFormat;
};

/// What `take(FormatOf<...>())` returns for a format of reals; false for others.
template <typename Take>
__device__ bool with_format(Format format, const Take& take) {
  switch (format) {
    case kFloat64:
      return take(FormatOf<kFloat64>());
    case kFloat32:
      return take(FormatOf<kFloat32>());
    case kFloat16:
      return take(FormatOf<kFloat16>());
    case kBfloat16:
      return take(FormatOf<kBfloat16>());
    default:
      return false;
  }
}

/// Four numbers side by side, as they are stored: one load, or two of doubles.
template <typename Stored>
struct alignas(sizeof(Stored) < 4 ? 4 * sizeof(Stored) : 16) Four {
  Stored of[4];
};

}  // namespace
}  // namespace pig::metrics
