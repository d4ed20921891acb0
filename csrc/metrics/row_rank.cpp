// SPDX-License-Identifier: Apache-2.0
#include "metrics/row_rank.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/ticks.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace pig::metrics {
namespace {

template <typename Bits>
constexpr int kSignBit = 8 * sizeof(Bits) - 1;

template <typename Bits>
constexpr bool is_negative(Bits bits) {
  return (bits >> kSignBit<Bits>) != 0;
}

template <typename Bits>
constexpr Bits magnitude(Bits bits) {
  return bits & static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
}

/// Ascending in torch.argmax's order: -0 and +0 have one key, and so have all NaNs, the greatest.
/// The greatest number of all is no key: one can be added to any.
template <typename Bits, Bits kInfinity>
constexpr Bits order_key(Bits bits) {
  constexpr Bits kSign = static_cast<Bits>(Bits{1} << kSignBit<Bits>);
  constexpr Bits kNan = static_cast<Bits>(~Bits{1});
  const Bits size = magnitude(bits);
  const Bits key = static_cast<Bits>(is_negative(bits) ? kSign - size : kSign + size);
  return size > kInfinity ? kNan : key;
}

/// What a part of a row showed.
struct Scan {
  uint64_t count = 0;  ///< logits that stand before the target's
  bool nonfinite = false;
  bool nan = false;
};

/// 0, 1, 2, ...: enough for the longest vector.
template <typename Bits>
constexpr auto kLaneNumbers = [] {
  std::array<Bits, 64 / sizeof(Bits)> numbers{};
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<Bits>(i);
  return numbers;
}();

}  // namespace

#define PIG_SET baseline
#define PIG_TARGET
#define PIG_VECTOR_BYTES 16
#define PIG_ANY_LANE(mask)                         \
  ([](const auto& lanes) {                         \
    uint64_t words[2];                             \
    __builtin_memcpy(words, &lanes, sizeof words); \
    return (words[0] | words[1]) != 0;             \
  }(mask))
namespace {
#include "metrics/row_scan.h"
}
#undef PIG_SET
#undef PIG_TARGET
#undef PIG_VECTOR_BYTES
#undef PIG_ANY_LANE

#if defined(__x86_64__)

#define PIG_SET avx2
#define PIG_TARGET __attribute__((target("avx2")))
#define PIG_VECTOR_BYTES 32
#define PIG_ANY_LANE(mask) \
  (_mm256_testz_si256(reinterpret_cast<__m256i>(mask), reinterpret_cast<__m256i>(mask)) == 0)
namespace {
#include "metrics/row_scan.h"
}
#undef PIG_SET
#undef PIG_TARGET
#undef PIG_VECTOR_BYTES
#undef PIG_ANY_LANE

#define PIG_SET avx512
#define PIG_TARGET \
  __attribute__((target("avx2,avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#define PIG_VECTOR_BYTES 64
#define PIG_ANY_LANE(mask) \
  (_mm512_test_epi64_mask(reinterpret_cast<__m512i>(mask), reinterpret_cast<__m512i>(mask)) != 0)
namespace {
#include "metrics/row_scan.h"
}
#undef PIG_SET
#undef PIG_TARGET
#undef PIG_VECTOR_BYTES
#undef PIG_ANY_LANE

#endif

InstructionSet best_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    return InstructionSet::kAvx512;
  if (__builtin_cpu_supports("avx2")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

const RankFunctions& rank_functions(Format format, [[maybe_unused]] InstructionSet set) {
  const int row = format - kFloat64;
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return avx512::kFunctions[row];
  if (set == InstructionSet::kAvx2) return avx2::kFunctions[row];
#endif
  return baseline::kFunctions[row];
}

const RankFunctions& rank_functions(Format format) {
  static const InstructionSet best = best_instruction_set();
  return rank_functions(format, best);
}

namespace {

template <typename Bits, Bits kInfinity>
I64 first_greatest(const void* data, I64 classes, I64 stride) {
  const auto* logits = static_cast<const Bits*>(data);
  Bits greatest = 0;
  for (I64 c = 0; c < classes; ++c)
    greatest = std::max(greatest, order_key<Bits, kInfinity>(logits[c * stride]));
  I64 first = 0;
  while (order_key<Bits, kInfinity>(logits[first * stride]) != greatest) ++first;
  return first;
}

}  // namespace

I64 argmax(const void* data, Format format, I64 classes, I64 class_stride) {
  switch (format) {
    case kFloat64:
      return first_greatest<uint64_t, 0x7FF0'0000'0000'0000u>(data, classes, class_stride);
    case kFloat32:
      return first_greatest<uint32_t, 0x7F80'0000u>(data, classes, class_stride);
    case kFloat16:
      return first_greatest<uint16_t, 0x7C00u>(data, classes, class_stride);
    default:
      return first_greatest<uint16_t, 0x7F80u>(data, classes, class_stride);
  }
}

}  // namespace pig::metrics
