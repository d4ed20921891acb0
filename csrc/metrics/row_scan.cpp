// SPDX-License-Identifier: Apache-2.0
//
// One pass over a row of logits: the rank of its target, and if asked the sums of which the
// cross-entropy is made.
//
// The rank is the number of logits that stand before the target's in torch.argmax's order:
// #{j < t: x_j >= x_t} + #{j > t: x_j > x_t}. It gives top-1 and every top-k; no argmax and no sort
// is needed. Bits are compared as integers that have the order of the numbers.
//
// The sums of exp(x - max) are taken block by block. A block is read twice: for the ranks, which
// also gives its greatest logit, and then, from the first-level cache, for the exponentials. When a
// block raises the maximum, what was summed before is scaled by exp(old - new), in double
// precision. Sums of up to kChunk logits are of the logits' precision (of float for the short
// formats), in as many parts as a vector has lanes. The next block is fetched from memory while the
// exponentials of one are computed.
//
// These are plain loops that the compiler vectorises, for the baseline and for AVX2; AVX-512 gains
// a quarter at most, and loses more with few classes. This file is compiled with -fopenmp-simd, for
// sums in any order, and -ffp-contract=fast (CMakeLists.txt).
#include "metrics/row_scan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/instruction_set.h"
#include "metrics/exponential.h"

namespace pig::metrics {
namespace {

#define PIG_INLINE __attribute__((always_inline)) inline

/// So many classes at most are between two looks at the greatest logit: 8 KB, which stay in the
/// first-level cache. They are counted in numbers as wide as a logit, which fill a vector as logits
/// do: no lane overflows.
template <typename Key>
constexpr I64 kBlock = 8192 / sizeof(Key);
/// So many exponentials are computed between prefetches: all of a block's at once would have to
/// wait for each other.
constexpr int kChunk = 512;
constexpr int kCacheLine = 64;
/// A prediction is sure where the sum of exp(x - max) is less.
constexpr double kSure = 1.25;
/// Like kBlock, where nobody asks for the greatest logit.
constexpr I64 kLongBlock = 32768;

// --- what the formats are ---

template <Format kFormat>
struct Logits {
  using Key = int16_t;
  using Real = float;
  static constexpr Key kInfinity = kFormat == kFloat16 ? 0x7C00 : 0x7F80;
  static PIG_INLINE Real real(Key bits) {
    if constexpr (kFormat == kBfloat16)
      return std::bit_cast<float>(static_cast<uint32_t>(static_cast<uint16_t>(bits)) << 16);
    // Without a branch, unlike half_to_float.
    const auto stored = static_cast<uint32_t>(static_cast<uint16_t>(bits));
    const uint32_t magnitude = stored & 0x7FFF, sign = (stored & 0x8000) << 16;
    const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
    const uint32_t finite = std::bit_cast<uint32_t>(scaled);
    const uint32_t other = (magnitude << 13) + (224u << 23);
    return std::bit_cast<float>((magnitude < 0x7C00 ? finite : other) | sign);
  }
};

template <>
struct Logits<kFloat32> {
  using Key = int32_t;
  using Real = float;
  static constexpr Key kInfinity = 0x7F80'0000;
  static PIG_INLINE Real real(Key bits) { return std::bit_cast<float>(bits); }
};

template <>
struct Logits<kFloat64> {
  using Key = int64_t;
  using Real = double;
  static constexpr Key kInfinity = 0x7FF0'0000'0000'0000;
  static PIG_INLINE Real real(Key bits) { return std::bit_cast<double>(bits); }
};

// --- the order of logits ---

template <typename Key>
constexpr Key kGreatest = std::numeric_limits<Key>::max();
template <typename Key>
constexpr Key kSignBit = std::numeric_limits<Key>::min();

/// Ascending with the numbers. A positive NaN is above infinity, a negative one below minus
/// infinity, and -0 is the one below +0. Its own inverse.
template <typename Key>
PIG_INLINE constexpr Key order_key(Key bits) {
  const Key is_negative = static_cast<Key>(bits >> (8 * sizeof(Key) - 1));
  return static_cast<Key>(bits ^ (is_negative & kGreatest<Key>));
}

/// What a logit's key must reach to stand before the target's: as an earlier class, as a later one.
template <typename Key>
struct Thresholds {
  PIG_INLINE explicit Thresholds(Key target_bits) {
    const Key key = order_key(target_bits);
    const bool is_zero = key == 0 || key == -1;
    earlier = is_zero ? Key{-1} : key;
    later = is_zero ? Key{1} : static_cast<Key>(key == kGreatest<Key> ? key : key + 1);
  }
  Key earlier;
  Key later;
};

template <typename Key>
struct Counted {
  I64 reaching = 0;
  Key greatest = kSignBit<Key>;
  Key least = kGreatest<Key>;

  /// Adds up to kLongBlock logits.
  PIG_INLINE void add(const Key* logits, I64 length, Key threshold) {
    std::make_unsigned_t<Key> here = 0;
    Key top = greatest, bottom = least;
    for (int i = 0; i < static_cast<int>(length); ++i) {
      const Key key = order_key(logits[i]);
      here = static_cast<decltype(here)>(here + (key >= threshold));
      top = std::max(top, key);
      bottom = std::min(bottom, key);
    }
    reaching += static_cast<I64>(here);
    greatest = top;
    least = bottom;
  }
};

/// By unordered compares, for a row with NaNs: the rank, and where the first NaN is.
template <Format kFormat, typename Key>
PIG_INLINE void rank_among_nans(const Key* row, I64 classes, I64 target, RowScan& scan) {
  using L = Logits<kFormat>;
  const auto own = L::real(row[target]);
  I64 rank = 0;
  if (own == own) {
    for (I64 c = 0; c < target; ++c) rank += !(L::real(row[c]) < own);
    for (I64 c = target + 1; c < classes; ++c) rank += !(L::real(row[c]) <= own);
  } else {
    for (I64 c = 0; c < target; ++c) rank += L::real(row[c]) != L::real(row[c]);
  }
  scan.rank = rank;
  scan.prediction = 0;
  while (L::real(row[scan.prediction]) == L::real(row[scan.prediction])) ++scan.prediction;
}

// --- exponentials ---

constexpr float kLowest(float) { return -87; }  // exp of it is just above the least normal number
constexpr double kLowest(double) { return -708; }

/// Adds exp(x - max) and exp(x - max) * (x - max). What is far below the maximum, as minus infinity
/// is, adds less than can be seen. `kAnyBelow`: whether there may be such logits.
template <bool kAnyBelow, typename Real>
PIG_INLINE void add_exponential(Real x, Real max, Real& sum, Real& shift_sum) {
  Real shift = x - max;
  if constexpr (kAnyBelow) shift = kLowest(Real{}) > shift ? kLowest(Real{}) : shift;
  const Real power = exponential(shift);
  sum += power;
  shift_sum += power * shift;
}

/// The sums so far, of logits up to `max`.
struct RunningSums {
  double max = -std::numeric_limits<double>::infinity();
  double exp_sum = 0;
  double shift_sum = 0;

  void raise(double to) {
    if (exp_sum != 0) {
      const double scale = std::exp(max - to);
      shift_sum = scale == 0 ? 0 : scale * (shift_sum + (max - to) * exp_sum);
      exp_sum *= scale;
    }
    max = to;
  }
};

/// `logit_sum`: of the logits, by the weights of their classes.
PIG_INLINE void store_sums(const LogitRows& rows, const RunningSums& running, double target,
                           double logit_sum, bool is_valid, RowSums& sums) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  if (!is_valid) {
    sums = {kNaN, kNaN, kNaN, kNaN, kNaN};
    return;
  }
  sums = {running.max, target, running.exp_sum, running.shift_sum, 0};
  if (rows.weighted_sums) sums.weighted_sum = logit_sum - rows.class_weight_sum * running.max;
}

// --- rows ---

template <Format kFormat, typename Key>
PIG_INLINE double sum_of_logits(const Key* logits, I64 length, const double* weights) {
  double sum = 0;
  if (weights == nullptr) {
#pragma omp simd reduction(+ : sum)
    for (I64 i = 0; i < length; ++i) sum += Logits<kFormat>::real(logits[i]);
  } else {
#pragma omp simd reduction(+ : sum)
    for (I64 i = 0; i < length; ++i) sum += weights[i] * Logits<kFormat>::real(logits[i]);
  }
  return sum;
}

template <Format kFormat, bool kAnyBelow, typename Key, typename Real>
PIG_INLINE void add_exponentials(const Key* logits, int length, Real max, RunningSums& running) {
  using L = Logits<kFormat>;
  Real sum = 0, shift_sum = 0;
  if constexpr (sizeof(Key) == 2) {
    // By pairs: to widen halves of a word takes one operation each, without a shuffle. The type is
    // written twice, as `auto` would leave its attributes out.
    using Pair [[gnu::aligned(2), gnu::may_alias]] = uint32_t;
    const Pair* const pairs = reinterpret_cast<const Pair*>(logits);
    Real other_sum = 0, other_shift_sum = 0;
#pragma omp simd reduction(+ : sum, shift_sum, other_sum, other_shift_sum)
    for (int i = 0; i < length / 2; ++i) {
      const uint32_t pair = pairs[i];
      add_exponential<kAnyBelow>(L::real(static_cast<Key>(pair)), max, sum, shift_sum);
      add_exponential<kAnyBelow>(L::real(static_cast<Key>(pair >> 16)), max, other_sum,
                                 other_shift_sum);
    }
    sum += other_sum;
    shift_sum += other_shift_sum;
    if (length % 2 != 0)
      add_exponential<kAnyBelow>(L::real(logits[length - 1]), max, sum, shift_sum);
  } else {
#pragma omp simd reduction(+ : sum, shift_sum)
    for (int i = 0; i < length; ++i)
      add_exponential<kAnyBelow>(L::real(logits[i]), max, sum, shift_sum);
  }
  running.exp_sum += sum;
  running.shift_sum += shift_sum;
}

/// The sum of exp(x - max) once more, of logits of which some are the maximum, with these counted
/// and not added to the others.
template <Format kFormat, typename Key, typename Real>
PIG_INLINE double exact_exp_sum(const Key* logits, int length, Real max) {
  Real sum = 0, maxima = 0;
#pragma omp simd reduction(+ : sum, maxima)
  for (int i = 0; i < length; ++i) {
    const Real shift = Logits<kFormat>::real(logits[i]) - max;
    const Real power = exponential(kLowest(Real{}) > shift ? kLowest(Real{}) : shift);
    sum += shift == 0 ? 0 : power;
    maxima += shift == 0 ? 1 : 0;
  }
  return static_cast<double>(maxima) + static_cast<double>(sum);
}

/// The first logit with a key of `least` or more; there is one.
template <typename Key>
PIG_INLINE I64 first_reaching(const Key* logits, I64 length, Key least) {
  constexpr int kAtOnce = 128;
  I64 first = 0;
  for (; first + kAtOnce <= length; first += kAtOnce) {
    Key greatest = kSignBit<Key>;
    for (int i = 0; i < kAtOnce; ++i) greatest = std::max(greatest, order_key(logits[first + i]));
    if (greatest >= least) break;
  }
  while (order_key(logits[first]) < least) ++first;
  return first;
}

template <Format kFormat, bool kSums, typename Key>
PIG_INLINE void scan_row(const LogitRows& rows, const Key* row, I64 target, RowScan& scan) {
  using L = Logits<kFormat>;
  using Real = typename L::Real;
  constexpr Key kMinusInfinity = order_key(static_cast<Key>(kSignBit<Key> | L::kInfinity));
  const Thresholds<Key> thresholds(row[target]);
  Counted<Key> all;
  I64 greatest_begin = 0;
  RunningSums running;
  double exp_sum_of_greatest = 0;  // of the block from greatest_begin on
  double logit_sum = 0;
  const I64 block = kSums || rows.predictions ? kBlock<Key> : kLongBlock;
  for (I64 begin = 0; begin < rows.classes; begin += block) {
    const Key* const at = row + begin;
    const auto length = static_cast<int>(std::min(block, rows.classes - begin));
    const Key before = all.greatest;
    const I64 earlier = std::clamp<I64>(target - begin, 0, length);
    if (earlier != 0) all.add(at, earlier, thresholds.earlier);
    if (earlier != length) all.add(at + earlier, length - earlier, thresholds.later);
    if (all.greatest > before && (all.greatest != 0 || before != -1))  // +0 is not above -0
      greatest_begin = begin;
    if constexpr (kSums) {
      if (all.greatest > kMinusInfinity && all.greatest < L::kInfinity) {
        const Real max = L::real(order_key(all.greatest));
        const bool is_raised = max > running.max;
        if (is_raised) running.raise(max);
        const double exp_sum_before = running.exp_sum;
        const bool any_below = L::real(order_key(all.least)) - max < kLowest(Real{});
        for (int i = 0; i < length; i += kChunk) {
          const int some = std::min(kChunk, length - i);
          // What comes next is fetched meanwhile, be it past this row.
          for (int k = 0; k < some; k += kCacheLine / static_cast<int>(sizeof(Key)))
            __builtin_prefetch(at + length + i + k, 0, 2);
          if (any_below) {
            add_exponentials<kFormat, true>(at + i, some, max, running);
          } else {
            add_exponentials<kFormat, false>(at + i, some, max, running);
          }
        }
        if (is_raised) exp_sum_of_greatest = running.exp_sum - exp_sum_before;
      }
      if (rows.weighted_sums)
        logit_sum += sum_of_logits<kFormat>(
            at, length, rows.class_weight == nullptr ? nullptr : rows.class_weight + begin);
    }
  }
  scan.finite = all.greatest < L::kInfinity && all.least > kMinusInfinity;
  if (all.greatest > L::kInfinity || all.least < kMinusInfinity) {
    rank_among_nans<kFormat>(row, rows.classes, target, scan);
  } else {
    scan.rank = all.reaching;
    scan.prediction = target;
    if (rows.predictions && scan.rank != 0) {
      const Key least = Thresholds<Key>(order_key(all.greatest)).earlier;
      scan.prediction = greatest_begin +
                        first_reaching(row + greatest_begin, rows.classes - greatest_begin, least);
    }
  }
  if constexpr (kSums) {
    const bool is_valid =
        all.greatest < L::kInfinity && all.greatest > kMinusInfinity && all.least >= kMinusInfinity;
    // Of a prediction that is sure, the others are the loss, and beside the 1 of the greatest logit
    // they have lost their digits.
    if (is_valid && running.exp_sum < kSure) {
      const auto length = static_cast<int>(std::min(block, rows.classes - greatest_begin));
      const Real max = L::real(order_key(all.greatest));
      running.exp_sum +=
          exact_exp_sum<kFormat>(row + greatest_begin, length, max) - exp_sum_of_greatest;
    }
    store_sums(rows, running, L::real(row[target]), logit_sum, is_valid, scan.sums);
  }
}

template <Format kFormat, bool kSums>
PIG_INLINE void scan_rows(const LogitRows& rows, RowScan* scans) {
  const auto* const logits = static_cast<const typename Logits<kFormat>::Key*>(rows.logits);
  for (int i = 0; i < rows.rows; ++i) {
    // Of the rows that follow, what is read first: it may lie anywhere.
    const int ahead = std::min(i + 2, rows.rows - 1);
    __builtin_prefetch(logits + ahead * rows.row_stride + std::max<I64>(rows.targets[ahead], 0));
    if (rows.targets[i] >= 0)
      scan_row<kFormat, kSums>(rows, logits + i * rows.row_stride, rows.targets[i], scans[i]);
  }
}

/// Defines `set`: the functions by Format, from kFloat64 on, compiled for an instruction set.
#define PIG_COMPILE_FOR(set, target)                                          \
  template <Format kFormat>                                                   \
  struct set##_functions {                                                    \
    target static void rank(const LogitRows& rows, RowScan* scans) {          \
      scan_rows<kFormat, false>(rows, scans);                                 \
    }                                                                         \
    target static void rank_and_sums(const LogitRows& rows, RowScan* scans) { \
      scan_rows<kFormat, true>(rows, scans);                                  \
    }                                                                         \
    static constexpr RowFunctions table{rank, rank_and_sums};                 \
  };                                                                          \
  constexpr RowFunctions set[] = {                                            \
      set##_functions<kFloat64>::table, set##_functions<kFloat32>::table,     \
      set##_functions<kFloat16>::table, set##_functions<kBfloat16>::table};

PIG_COMPILE_FOR(baseline, )
#if defined(__x86_64__)
PIG_COMPILE_FOR(avx2, __attribute__((target("avx2,fma"))))
#endif

}  // namespace

std::vector<const RowFunctions*> row_functions_by_instructions() {
  std::vector<const RowFunctions*> sets{baseline};
#if defined(__x86_64__)
  if (instruction_set() >= InstructionSet::kAvx2) sets.push_back(avx2);
#endif
  return sets;
}

const RowFunctions& row_functions(Format format) {
  static const RowFunctions* const functions = row_functions_by_instructions().back();
  return functions[format - kFloat64];
}

}  // namespace pig::metrics
