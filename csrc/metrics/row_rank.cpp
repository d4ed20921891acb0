// SPDX-License-Identifier: Apache-2.0
//
// The rank of the target's logit is the number of logits that stand before it in torch.argmax's
// order: #{j < t: x_j >= x_t} + #{j > t: x_j > x_t}. One pass gives top-1 and every top-k; no
// argmax and no sort is needed. Bits are compared as integers, in plain loops that the compiler
// vectorises, for each instruction set once.
#include "metrics/row_rank.h"

#include <algorithm>
#include <cstdint>

namespace pig::metrics {
namespace {

#define PIG_INLINE [[gnu::always_inline]] inline

/// So many logits at most are counted in numbers as wide as a logit, which fill a vector as logits
/// do: then no lane overflows.
constexpr I64 kStretch = 32768;

template <typename Bits>
constexpr Bits kSign = static_cast<Bits>(Bits{1} << (8 * sizeof(Bits) - 1));

template <typename Bits>
PIG_INLINE constexpr Bits magnitude(Bits bits) {
  return bits & static_cast<Bits>(~kSign<Bits>);
}

/// Ascending in torch.argmax's order: -0 and +0 have one key, and so have all NaNs, the greatest.
/// The greatest number of all is no key: one can be added to any.
template <typename Bits, Bits kInfinity>
PIG_INLINE constexpr Bits order_key(Bits bits) {
  const Bits size = magnitude(bits);
  const Bits key = static_cast<Bits>(bits >= kSign<Bits> ? kSign<Bits> - size : kSign<Bits> + size);
  return size > kInfinity ? static_cast<Bits>(~Bits{1}) : key;
}

/// How many logits have a key of `threshold` or more. Raises `top` to the greatest magnitude.
template <typename Bits, Bits kInfinity>
PIG_INLINE I64 count_reaching(const Bits* logits, I64 count, Bits threshold, Bits& top) {
  I64 reaching = 0;
  for (I64 begin = 0; begin < count; begin += kStretch) {
    const auto length = static_cast<int>(std::min(kStretch, count - begin));
    const Bits* at = logits + begin;
    Bits partial = 0, greatest = 0;
    for (int i = 0; i < length; ++i) {
      partial = static_cast<Bits>(partial + (order_key<Bits, kInfinity>(at[i]) >= threshold));
      greatest = std::max(greatest, magnitude(at[i]));
    }
    reaching += static_cast<I64>(partial);
    top = std::max(top, greatest);
  }
  return reaching;
}

template <typename Bits, Bits kInfinity>
PIG_INLINE RowRank rank_row(const Bits* row, I64 classes, I64 target) {
  const Bits key = order_key<Bits, kInfinity>(row[target]);
  Bits top = 0;
  const I64 before = count_reaching<Bits, kInfinity>(row, target, key, top);
  const I64 after = count_reaching<Bits, kInfinity>(row + target, classes - target,
                                                    static_cast<Bits>(key + 1), top);
  return {before + after, top < kInfinity};
}

/// Rows whose logits lie apart: class by class, so that memory is read in its order.
template <typename Bits, Bits kInfinity>
PIG_INLINE void rank_columns(const Bits* logits, I64 classes, I64 class_stride, I64 row_stride,
                             int rows, const I64* targets, RowRank* ranks) {
  Bits keys[kRowsAtOnce], tops[kRowsAtOnce], counts[kRowsAtOnce], positions[kRowsAtOnce];
  for (int i = 0; i < rows; ++i) {
    const I64 target = std::max<I64>(targets[i], 0);
    keys[i] = order_key<Bits, kInfinity>(logits[target * class_stride + i * row_stride]);
    tops[i] = 0;
    ranks[i].rank = -1;  // each counts itself once
  }
  for (I64 begin = 0; begin < classes; begin += kStretch) {
    const auto length = static_cast<int>(std::min(kStretch, classes - begin));
    for (int i = 0; i < rows; ++i) {
      // Past the target a logit must be greater: below, by one more than the key.
      positions[i] = static_cast<Bits>(std::clamp(targets[i] - begin, I64{-1}, kStretch) + 1);
      counts[i] = 0;
    }
    for (int c = 0; c < length; ++c) {
      const Bits* at = logits + (begin + c) * class_stride;
      const auto here = static_cast<Bits>(c + 1);
      const auto add = [&](int i, Bits x) __attribute__((always_inline)) {
        const auto threshold = static_cast<Bits>(keys[i] + (here > positions[i]));
        counts[i] = static_cast<Bits>(counts[i] + (order_key<Bits, kInfinity>(x) >= threshold));
        tops[i] = std::max(tops[i], magnitude(x));
      };
      if (row_stride == 1) {
        for (int i = 0; i < rows; ++i) add(i, at[i]);
      } else {
        for (int i = 0; i < rows; ++i) add(i, at[i * row_stride]);
      }
    }
    for (int i = 0; i < rows; ++i) ranks[i].rank += static_cast<I64>(counts[i]);
  }
  for (int i = 0; i < rows; ++i) ranks[i].finite = tops[i] < kInfinity;
}

template <typename Bits, Bits kInfinity>
PIG_INLINE void rank_rows(const void* data, I64 classes, I64 class_stride, I64 row_stride, int rows,
                          const I64* targets, RowRank* ranks) {
  const auto* logits = static_cast<const Bits*>(data);
  if (class_stride != 1) {
    rank_columns<Bits, kInfinity>(logits, classes, class_stride, row_stride, rows, targets, ranks);
    return;
  }
  for (int i = 0; i < rows; ++i) {
    // A row's scan begins with the logit of its target, which lies anywhere in it.
    const int ahead = std::min(i + 2, rows - 1);
    __builtin_prefetch(logits + ahead * row_stride + std::max<I64>(targets[ahead], 0));
    if (targets[i] >= 0)
      ranks[i] = rank_row<Bits, kInfinity>(logits + i * row_stride, classes, targets[i]);
  }
}

template <typename Bits, Bits kInfinity>
PIG_INLINE I64 first_greatest(const void* data, I64 classes, I64 stride) {
  const auto* logits = static_cast<const Bits*>(data);
  Bits greatest = 0;
  for (I64 c = 0; c < classes; ++c)
    greatest = std::max(greatest, order_key<Bits, kInfinity>(logits[c * stride]));
  I64 first = 0;
  while (order_key<Bits, kInfinity>(logits[first * stride]) != greatest) ++first;
  return first;
}

/// Defines `set`: the functions by Format, from kFloat64 on, compiled for an instruction set.
#define PIG_COMPILE_FOR(set, target)                                                             \
  template <typename Bits, Bits kInfinity>                                                       \
  struct set##_functions {                                                                       \
    target static void rank(const void* data, I64 classes, I64 class_stride, I64 row_stride,     \
                            int rows, const I64* targets, RowRank* ranks) {                      \
      rank_rows<Bits, kInfinity>(data, classes, class_stride, row_stride, rows, targets, ranks); \
    }                                                                                            \
    target static I64 argmax(const void* data, I64 classes, I64 class_stride) {                  \
      return first_greatest<Bits, kInfinity>(data, classes, class_stride);                       \
    }                                                                                            \
    static constexpr RankFunctions table{rank, argmax};                                          \
  };                                                                                             \
  constexpr RankFunctions set[] = {set##_functions<uint64_t, 0x7FF0'0000'0000'0000u>::table,     \
                                   set##_functions<uint32_t, 0x7F80'0000u>::table,               \
                                   set##_functions<uint16_t, 0x7C00u>::table,                    \
                                   set##_functions<uint16_t, 0x7F80u>::table};

PIG_COMPILE_FOR(baseline, )
#if defined(__x86_64__)
PIG_COMPILE_FOR(avx2, __attribute__((target("avx2"))))
PIG_COMPILE_FOR(
    avx512, __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512"))))
#endif

const RankFunctions* best_functions() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return avx512;
  if (__builtin_cpu_supports("avx2")) return avx2;
#endif
  return baseline;
}

}  // namespace

const RankFunctions& rank_functions(Format format) {
  static const RankFunctions* const functions = best_functions();
  return functions[format - kFloat64];
}

}  // namespace pig::metrics
