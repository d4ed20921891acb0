// SPDX-License-Identifier: Apache-2.0
//
// One update's tensors where they all have one shape and each element stands for itself: running
// values, and rows without logits. For the CPU and the kernels, so it includes nothing but the
// state.
#pragma once

#include "metrics/metric_state.h"

namespace pig::metrics {

/// One of the tensors. Without data, it was not given.
struct Operand {
  const void* data;
  Format format;
  I64 strides[kMaxDims];
};

constexpr int kMaxOperands = 6;

// What the operands of each kind of update are.
enum ValueOperand : int { kValue, kValueWeight, kValueOperands };
enum RowOperand : int {
  kRowLoss,
  kRowCorrect,
  kRowRank,
  kRowEntropy,
  kRowWeight,
  kRowMask,
  kRowOperands
};

/// Elements are numbered over `sizes`, the last dimension fastest; strides are in elements. It is
/// handed to a kernel as it is.
struct ElementBatch {
  I64 elements;
  int dims;  ///< at least 1
  Operand operands[kMaxOperands];
  I64 sizes[kMaxDims];
  U64 reciprocals[kMaxDims];  ///< as `reciprocal_of` says
};

/// Where an element lies in each operand.
struct ElementOffsets {
  I64 of[kMaxOperands];
};

/// Of the first so many operands.
template <int kOperands>
PIG_SHARED ElementOffsets element_offsets(const ElementBatch& batch, I64 element) {
  ElementOffsets offsets{};
#if defined(__CUDACC__)
#pragma unroll 1  // few have more than one
#endif
  for (int dim = batch.dims - 1; dim > 0; --dim) {
    const I64 outer = quotient(element, batch.sizes[dim], batch.reciprocals[dim]);
    const I64 at = element - outer * batch.sizes[dim];
    element = outer;
    for (int i = 0; i < kOperands; ++i) offsets.of[i] += at * batch.operands[i].strides[dim];
  }
  for (int i = 0; i < kOperands; ++i) offsets.of[i] += element * batch.operands[i].strides[0];
  return offsets;
}

PIG_SHARED int stored_bytes(Format format) {
  if (format == kFloat64 || format == kInt64) return 8;
  if (format == kFloat32 || format == kInt32) return 4;
  return format == kUint8 ? 1 : 2;
}

/// Whether four elements side by side, counted from the first, are one aligned load of each operand
/// that was given, or two of 8 bytes each.
PIG_SHARED bool is_packed(const ElementBatch& batch) {
  if (batch.dims != 1) return false;
  for (int i = 0; i < kMaxOperands; ++i) {
    const Operand& operand = batch.operands[i];
    if (operand.data == nullptr) continue;
    const int bytes = stored_bytes(operand.format);
    if (operand.strides[0] != 1) return false;
    if (reinterpret_cast<U64>(operand.data) % static_cast<U64>(bytes < 4 ? 4 * bytes : 16) != 0)
      return false;
  }
  return true;
}

/// How many elements are looked at for a shift: some of any part that is not too small.
constexpr I64 kLooksForShift = 1024;

/// Reads the number of a running value that is looked at as the `look`-th one. False where it is
/// not finite or has no weight above 0.
PIG_SHARED bool look_for_shift(const ElementBatch& batch, I64 look, double& number) {
  I64 element = look;
  if (batch.elements > kLooksForShift) {
    // The fractions of multiples of the golden ratio are spread evenly, and unlike the steps of a
    // grid they do not all fall on the padding of rows.
    const U64 fraction = (static_cast<U64>(look) * 0x9E3779B97F4A7C15ull) >> 32;
    element = static_cast<I64>(static_cast<double>(fraction) * 0x1p-32 *
                               static_cast<double>(batch.elements));
  }
  if (element >= batch.elements) return false;
  const ElementOffsets offsets = element_offsets<kValueOperands>(batch, element);
  const Operand &of_number = batch.operands[kValue], &of_weight = batch.operands[kValueWeight];
  number = load_real(of_number.data, of_number.format, offsets.of[kValue]);
  const double weight = of_weight.data == nullptr
                            ? 1
                            : load_real(of_weight.data, of_weight.format, offsets.of[kValueWeight]);
  return is_finite(number) && is_finite(weight) && weight > 0;
}

/// A number near those of an update of a running value, one of those that count: sums of squares
/// are taken of the distances from it, which loses no digits where all numbers are far from 0.
/// Where none is found, it is 0.
PIG_SHARED double shift_of(const ElementBatch& batch) {
  double number = 0;
  for (I64 look = 0; look < kLooksForShift && look < batch.elements; ++look)
    if (look_for_shift(batch, look, number)) return number;
  return 0;
}

}  // namespace pig::metrics
