// SPDX-License-Identifier: Apache-2.0
//
// Updates whose tensors have one shape, each element of which stands for itself: running values and
// rows without logits.
#pragma once

#include "metrics/kernel_finish.cuh"
#include "metrics/kernel_numbers.cuh"

namespace pig::metrics {
namespace {

/// Four numbers side by side, from their group on, as they are stored.
__device__ void load_four(const Operand& of, I64 group, U64 (&bits)[4]) {
  const auto load = [&](auto stored) {
    const auto four = static_cast<const Four<decltype(stored)>*>(of.data)[group];
#pragma unroll
    for (int k = 0; k < 4; ++k) bits[k] = four.of[k];
  };
  switch (stored_bytes(of.format)) {
    case 8:
      return load(U64());
    case 4:
      return load(unsigned());
    case 2:
      return load(static_cast<unsigned short>(0));
    default:
      return load(static_cast<unsigned char>(0));
  }
}

/// What four numbers are that lie in `bits`.
__device__ void convert_four(const Operand& of, const U64 (&bits)[4], double (&numbers)[4]) {
#define PIG_CASE(format)                                                    \
  case format:                                                              \
    for (int k = 0; k < 4; ++k) numbers[k] = real_of_bits(bits[k], format); \
    break;
  switch (of.format) {
    PIG_CASE(kFloat64)
    PIG_CASE(kFloat32)
    PIG_CASE(kFloat16)
    PIG_CASE(kBfloat16)
    PIG_CASE(kInt64)
    PIG_CASE(kInt32)
    PIG_CASE(kUint8)
    PIG_CASE(kNone)
  }
#undef PIG_CASE
}

/// The number of the first four that this thread takes.
__device__ I64 first_four() { return static_cast<I64>(blockIdx.x) * kThreads + threadIdx.x; }

/// Calls `add(count, numbers)` for this thread's share of the elements from `first`, a multiple of
/// four, to `end`: for four of them at a time, of which `count` are there. Operands that were not
/// given are 1. All are loaded before any is looked at.
template <int kOperands, typename Add>
__device__ void for_each_four(const ElementBatch& batch, I64 first, I64 end, Add add) {
  const bool packed = is_packed(batch);
  const I64 step = 4 * static_cast<I64>(gridDim.x) * kThreads;
#pragma unroll 1
  for (I64 begin = first + 4 * first_four(); begin < end; begin += step) {
    const I64 left = end - begin;
    const int count = left < 4 ? static_cast<int>(left) : 4;
    U64 bits[kOperands][4] = {};
    if (packed && count == 4) {
#pragma unroll
      for (int i = 0; i < kOperands; ++i)
        if (batch.operands[i].data != nullptr) load_four(batch.operands[i], begin / 4, bits[i]);
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (k >= count) break;
        const ElementOffsets offsets = element_offsets<kOperands>(batch, begin + k);
#pragma unroll
        for (int i = 0; i < kOperands; ++i)
          if (batch.operands[i].data != nullptr)
            bits[i][k] = load_bits(batch.operands[i].data, batch.operands[i].format, offsets.of[i]);
      }
    }
    double numbers[kOperands][4];
#pragma unroll
    for (int i = 0; i < kOperands; ++i) {
#pragma unroll
      for (int k = 0; k < 4; ++k) numbers[i][k] = 1;
      if (batch.operands[i].data != nullptr) convert_four(batch.operands[i], bits[i], numbers[i]);
    }
    add(count, numbers);
  }
}

/// The same as `shift_of`, by all threads; each warp looks for itself. Mostly the first element
/// will do, and is the same word for all. Where that is padding, each lane looks at another one.
__device__ double find_shift(const ElementBatch& batch) {
  double number = 0;
  if (look_for_shift(batch, 0, number)) return number;
  const int lane = threadIdx.x % 32;
  for (I64 look = 0; look < kLooksForShift && look < batch.elements; look += 32) {
    int found = look_for_shift(batch, look + lane, number) ? lane : 32;
    for (int step = 16; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(0xFFFFFFFFu, found, step);
      found = other < found ? other : found;
    }
    if (found < 32) return __shfl_sync(0xFFFFFFFFu, number, found);
  }
  return 0;
}

/// Adds the elements from `first` to `end`, whatever they are; with `only_others` no fours that
/// `add_plain` takes.
template <typename Kind>
__device__ void add_elements(const Kind& p, I64 first, I64 end, bool only_others, double shift,
                             OfBlock<Kind>& found) {
  constexpr int kOperands = Kind::kOperands;
  for_each_four<kOperands>(p.batch, first, end,
                           [&](int count, const double (&fours)[kOperands][4]) {
                             double numbers[4][kOperands];
                             bool plain = only_others;
#pragma unroll
                             for (int k = 0; k < 4; ++k) {
#pragma unroll
                               for (int i = 0; i < kOperands; ++i) numbers[k][i] = fours[i][k];
                               if constexpr (!Kind::kIsUpdate)
                                 plain = plain && is_finite(numbers[k][kValue]);
                             }
                             if (plain) return;
#pragma unroll
                             for (int k = 0; k < 4; ++k)
                               if (k < count) p.add(numbers[k], shift, found);
                           });
}

/// Adds the numbers of a running value in whole fours, where all of a four are finite. False where
/// there are others.
template <Format kFormat>
__device__ bool add_plain(const ElementBatch& batch, double shift,
                          OfBlock<ValuesParameters>& found) {
  using Number = typename Numbers<kFormat>::Real;
  using Stored = Four<typename Numbers<kFormat>::Stored>;
  // Fours that are loaded at a time: 64 bytes, but no more than so many elements.
  constexpr int kAtOnce = kElementsAtOnce / 4 / (sizeof(Number) / sizeof(float));
  const auto* const stored = static_cast<const Stored*>(batch.operands[kValue].data);
  const I64 fours = batch.elements / 4;
  const I64 step = static_cast<I64>(gridDim.x) * kThreads;
  PlainValues<Number> plain;
  unsigned taken = 0;
  bool others = false;
  for (I64 at = first_four(); at < fours; at += kAtOnce * step) {
    Stored loaded[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
      if (at + k * step < fours) loaded[k] = stored[at + k * step];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (at + k * step >= fours) break;
      Number numbers[4];
      Number zero = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        numbers[j] = Numbers<kFormat>::real(loaded[k].of[j]);
        zero += numbers[j] * 0;
      }
      if (zero == 0) {
        ++taken;
#pragma unroll
        for (int j = 0; j < 4; ++j) plain.add(numbers[j], shift);
      } else {
        others = true;
      }
    }
  }
  plain.add_to(found, 4 * taken);
  return !others;
}

/// The format of a running value's numbers where they have no weights and lie side by side;
/// otherwise kNone.
__device__ Format plain_format(const ElementBatch& batch) {
  const Format format = batch.operands[kValue].format;
  const bool has_weights = batch.operands[kValueWeight].data != nullptr;
  return !has_weights && format <= kBfloat16 && is_packed(batch) ? format : kNone;
}

template <typename Kind>
__device__ void update_elements(const Kind& p) {
  double shift = 0;
  OfBlock<Kind> found = OfBlock<Kind>::none();
  const I64 elements = p.batch.elements;
  I64 whole = 0;
  bool all = true;
  if constexpr (!Kind::kIsUpdate) {
    shift = find_shift(p.batch);
    const Format format = plain_format(p.batch);
    if (format != kNone) whole = elements - elements % 4;
    all =
        with_format(format,
                    [&](auto of) { return add_plain<decltype(of)::kIs>(p.batch, shift, found); }) ||
        format == kNone;
  }
  // What this thread has left out, and what no thread has taken.
#pragma unroll 1
  for (int pass = all ? 1 : 0; pass < 2; ++pass)
    add_elements(p, pass == 0 ? 0 : whole, pass == 0 ? whole : elements, pass == 0, shift, found);
  merge_threads<Kind>(p, found);
  if (threadIdx.x % 32 == 0) shared<Kind>().warps[threadIdx.x / 32] = found;
  finish<Kind>(p, shift);
}

}  // namespace
}  // namespace pig::metrics
