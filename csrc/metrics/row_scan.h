// SPDX-License-Identifier: Apache-2.0
//
// Rank counting for one instruction set. Included by row_rank.cpp once for each, with PIG_SET (a
// namespace), PIG_TARGET (a function attribute), PIG_VECTOR_BYTES and PIG_ANY_LANE (whether a mask
// has a lane set) defined: so no guard.
//
// The rank of the target's logit is the number of logits that stand before it in torch.argmax's
// order: #{j < t: x_j >= x_t} + #{j > t: x_j > x_t}. One pass gives top-1 and every top-k; no
// argmax and no sort is needed. Bits are compared as integers. With the sign bit of the target
// known one compare does it: above zero as signed numbers, below zero as unsigned ones, downwards.
// Zeros (of which there are two) and rows with a NaN take the general way, by `order_key`.

namespace PIG_SET {

template <typename Bits>
struct Vectors {
  using Signed = std::make_signed_t<Bits>;
  static constexpr int kLanes = PIG_VECTOR_BYTES / sizeof(Bits);
  typedef Bits Vector __attribute__((vector_size(PIG_VECTOR_BYTES)));
  typedef Signed SignedVector __attribute__((vector_size(PIG_VECTOR_BYTES)));
};

/// The general way, for any row.
template <typename Bits, Bits kInfinity>
PIG_TARGET I64 rank_by_key(const Bits* row, I64 classes, I64 target) {
  const Bits key = order_key<Bits, kInfinity>(row[target]);
  I64 rank = 0;
  for (I64 j = 0; j < target; ++j) rank += order_key<Bits, kInfinity>(row[j]) >= key;
  for (I64 j = target + 1; j < classes; ++j) rank += order_key<Bits, kInfinity>(row[j]) > key;
  return rank;
}

template <typename Bits, Bits kInfinity>
PIG_TARGET RowRank scan_small(const Bits* row, I64 classes, I64 target) {
  Bits top = 0;
  for (I64 j = 0; j < classes; ++j) top = std::max(top, magnitude(row[j]));
  return {rank_by_key<Bits, kInfinity>(row, classes, target), top < kInfinity};
}

using Words __attribute__((vector_size(PIG_VECTOR_BYTES))) = uint64_t;
constexpr int kWords = PIG_VECTOR_BYTES / 8;

/// Lanes are added in ever wider ones: their sum need not fit one of Bits.
template <typename Bits, typename Vector>
PIG_TARGET inline uint64_t sum_of_lanes(const Vector& lanes) {
  auto words = reinterpret_cast<Words>(lanes);
  if constexpr (sizeof(Bits) == 2)
    words = (words & 0x0000'FFFF'0000'FFFFu) + (words >> 16 & 0x0000'FFFF'0000'FFFFu);
  if constexpr (sizeof(Bits) <= 4) words = (words & 0xFFFF'FFFFu) + (words >> 32);
  uint64_t sum = 0;
  for (int i = 0; i < kWords; ++i) sum += words[i];
  return sum;
}

/// Adds one to the lanes in which a logit reaches the threshold.
template <typename Bits, bool kNegative>
PIG_TARGET inline void add_hits(typename Vectors<Bits>::Vector& counts,
                                const typename Vectors<Bits>::Vector& x,
                                const typename Vectors<Bits>::Vector& threshold) {
#if PIG_VECTOR_BYTES == 64
  using Vector = typename Vectors<Bits>::Vector;
  // With a mask: GCC 12 makes a vector of it first.
  const auto a = reinterpret_cast<__m512i>(x), b = reinterpret_cast<__m512i>(threshold);
  const auto sum = reinterpret_cast<__m512i>(counts), ones = _mm512_set1_epi32(-1);
  constexpr int kReaches = kNegative ? _MM_CMPINT_LE : _MM_CMPINT_NLT;
  if constexpr (sizeof(Bits) == 2) {
    const __mmask32 hits =
        kNegative ? _mm512_cmp_epu16_mask(a, b, kReaches) : _mm512_cmp_epi16_mask(a, b, kReaches);
    counts = reinterpret_cast<Vector>(_mm512_mask_sub_epi16(sum, hits, sum, ones));
  } else if constexpr (sizeof(Bits) == 4) {
    const __mmask16 hits =
        kNegative ? _mm512_cmp_epu32_mask(a, b, kReaches) : _mm512_cmp_epi32_mask(a, b, kReaches);
    counts = reinterpret_cast<Vector>(_mm512_mask_sub_epi32(sum, hits, sum, ones));
  } else {
    const __mmask8 hits =
        kNegative ? _mm512_cmp_epu64_mask(a, b, kReaches) : _mm512_cmp_epi64_mask(a, b, kReaches);
    counts = reinterpret_cast<Vector>(_mm512_mask_sub_epi64(sum, hits, sum, ones));
  }
#else
  using Vector = typename Vectors<Bits>::Vector;
  using SignedVector = typename Vectors<Bits>::SignedVector;
  if constexpr (kNegative) {
    counts -= reinterpret_cast<Vector>(x <= threshold);
  } else {
    counts -= reinterpret_cast<Vector>(reinterpret_cast<SignedVector>(x) >=
                                       reinterpret_cast<SignedVector>(threshold));
  }
#endif
}

/// Up to as many classes as a lane of Bits can count. `before` and `after` are the thresholds for
/// logits that stand before the target, and from it on.
template <typename Bits, Bits kInfinity, bool kNegative>
PIG_TARGET Scan scan_stretch(const Bits* row, I64 classes, I64 target, Bits before, Bits after) {
  using V = Vectors<Bits>;
  using Vector = typename V::Vector;
  using SignedVector = typename V::SignedVector;
  constexpr int kLanes = V::kLanes;
  constexpr Bits kMagnitude = static_cast<Bits>(~Bits{0}) >> 1;

  Vector counts[2] = {};
  SignedVector tops[2] = {};
  const auto look = [&](int chain, const Vector& x) __attribute__((always_inline)) PIG_TARGET {
    const auto size = reinterpret_cast<SignedVector>(x & (Vector{} + kMagnitude));
    tops[chain] = size > tops[chain] ? size : tops[chain];
  };
  const auto count = [&](int chain, const Bits* at, const Vector& threshold)
                         __attribute__((always_inline)) PIG_TARGET {
                           Vector x;
                           __builtin_memcpy(&x, at, sizeof x);  // at any alignment
                           add_hits<Bits, kNegative>(counts[chain], x, threshold);
                           look(chain, x);
                         };
  Vector lane;
  __builtin_memcpy(&lane, kLaneNumbers<Bits>.data(), sizeof lane);
  // One loop over groups of four vectors, whose length is the same in every row, so that no branch
  // is mispredicted. The target's own group is taken as one behind it; what that leaves out, logits
  // before the target that equal it, is added.
  const I64 groups = classes / (4 * kLanes);
  const I64 split = target / (4 * kLanes);
  for (I64 group = 0; group < groups; ++group) {
    const Bits* at = row + group * 4 * kLanes;
    const Bits bits = group < split ? before : after;
    const Vector threshold = Vector{} + bits;
    count(0, at, threshold);
    count(1, at + kLanes, threshold);
    count(0, at + 2 * kLanes, threshold);
    count(1, at + 3 * kLanes, threshold);
  }
  if (split < groups) {
    const Bits* at = row + split * 4 * kLanes;
    const Vector place = Vector{} + static_cast<Bits>(target - split * 4 * kLanes);
    for (int i = 0; i < 4; ++i) {
      Vector x;
      __builtin_memcpy(&x, at + i * kLanes, sizeof x);
      const auto earlier = lane + static_cast<Bits>(i * kLanes) < place;
      const auto equal = x == Vector{} + before;
      counts[0] -= reinterpret_cast<Vector>(earlier & equal);
    }
  }
  // The rest, vector by vector, and a last one that overlaps what was counted.
  I64 begin = groups * 4 * kLanes;
  const auto lanes_below = [&](I64 position) __attribute__((always_inline)) PIG_TARGET {
    return Vector{} + static_cast<Bits>(std::clamp(position - begin, I64{0}, I64{4 * kLanes}));
  };
  Vector place = lanes_below(target);
  for (; begin + kLanes <= classes; begin += kLanes) {
    count(0, row + begin, lane < place ? Vector{} + before : Vector{} + after);
    lane += static_cast<Bits>(kLanes);
  }
  if (begin < classes) {
    __builtin_memcpy(&lane, kLaneNumbers<Bits>.data(), sizeof lane);
    const I64 counted = begin;
    begin = classes - kLanes;
    place = lanes_below(target);
    Vector x, hits = {};
    __builtin_memcpy(&x, row + begin, sizeof x);
    add_hits<Bits, kNegative>(hits, x, lane < place ? Vector{} + before : Vector{} + after);
    counts[0] += hits & reinterpret_cast<Vector>(lane >= lanes_below(counted));
    look(0, x);
  }

  const auto top = reinterpret_cast<Vector>(tops[0] > tops[1] ? tops[0] : tops[1]);
  Scan scan;
  scan.count = sum_of_lanes<Bits>(counts[0] + counts[1]);
  scan.nonfinite = PIG_ANY_LANE(top >= Vector{} + kInfinity);
  if (PIG_UNLIKELY(scan.nonfinite)) scan.nan = PIG_ANY_LANE(top > Vector{} + kInfinity);
  return scan;
}

template <typename Bits, Bits kInfinity, bool kNegative>
PIG_TARGET RowRank scan_row(const Bits* row, I64 classes, I64 target) {
  const Bits bits = row[target];
  const auto before = bits;
  const auto after = static_cast<Bits>(kNegative ? bits - 1 : bits + 1);
  // Lanes of 16 bits count to 65535, and each takes one logit in kLanes, of which there are 8 or
  // more.
  constexpr I64 kStretch = I64{1} << 18;
  Scan whole;
  for (I64 begin = 0; begin < classes;) {
    // The last stretch is never shorter than a vector.
    const I64 length = classes - begin < 2 * kStretch ? classes - begin : kStretch;
    const Scan scan = scan_stretch<Bits, kInfinity, kNegative>(
        row + begin, length, std::clamp(target - begin, I64{0}, length), before, after);
    whole.count += scan.count;
    whole.nonfinite |= scan.nonfinite;
    whole.nan |= scan.nan;
    begin += length;
  }
  if (PIG_UNLIKELY(whole.nan)) return {rank_by_key<Bits, kInfinity>(row, classes, target), false};
  return {static_cast<I64>(whole.count), !whole.nonfinite};
}

template <typename Bits, Bits kInfinity>
PIG_TARGET RowRank rank_row(const void* data, I64 classes, I64 target) {
  const auto* row = static_cast<const Bits*>(data);
  if (classes < Vectors<Bits>::kLanes || magnitude(row[target]) == 0)
    return scan_small<Bits, kInfinity>(row, classes, target);
  return is_negative(row[target]) ? scan_row<Bits, kInfinity, true>(row, classes, target)
                                  : scan_row<Bits, kInfinity, false>(row, classes, target);
}

/// Many rows side by side: logit c of row i is at `data[c * class_stride + i * row_stride]`.
template <typename Bits, Bits kInfinity>
PIG_TARGET void rank_columns(const void* data, I64 classes, I64 class_stride, I64 row_stride,
                             int rows, const I64* targets, RowRank* ranks) {
  const auto* logits = static_cast<const Bits*>(data);
  Bits keys[kColumnRows], tops[kColumnRows], counts[kColumnRows], positions[kColumnRows];
  for (int i = 0; i < rows; ++i) {
    keys[i] = order_key<Bits, kInfinity>(logits[targets[i] * class_stride + i * row_stride]);
    tops[i] = 0;
    ranks[i].rank = -1;  // each counts itself once
  }
  constexpr I64 kStretch = 32768;
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
      const auto add = [&](int i, Bits x) __attribute__((always_inline)) PIG_TARGET {
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
constexpr RankFunctions functions() {
  return {rank_row<Bits, kInfinity>, rank_columns<Bits, kInfinity>};
}

/// By Format, from kFloat64 on.
constexpr RankFunctions kFunctions[4] = {
    functions<std::uint64_t, 0x7FF0'0000'0000'0000u>(), functions<std::uint32_t, 0x7F80'0000u>(),
    functions<std::uint16_t, 0x7C00u>(), functions<std::uint16_t, 0x7F80u>()};

}  // namespace PIG_SET
