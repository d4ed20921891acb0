// SPDX-License-Identifier: Apache-2.0
//
// The state of a MetricAccumulator and the arithmetic on it: once for the CPU and the kernel.
//
// NVRTC and the C++ compiler both read it, so all that it includes for the kernel is the list of
// the state's fields, which Python reads as well. The state is plain 8-byte words in one tensor;
// all bytes zero is the state of no update.
#pragma once

#if defined(__CUDACC__)
#define PIG_SHARED __host__ __device__ inline
#define PIG_SHARED_INLINE __host__ __device__ __forceinline__
#else
#include <cmath>
#define PIG_SHARED inline
#define PIG_SHARED_INLINE [[gnu::always_inline]] inline
#endif

namespace pig::metrics {

using U64 = unsigned long long;
using I64 = long long;

#define PIG_LIMIT(name, value) constexpr int name = value;
#include "metrics/state_fields.h"
#undef PIG_LIMIT
/// How the numbers of two parts become one.
enum class Merge { kSum, kLeast, kGreatest };

/// Confusion matrices up to this many classes are part of a snapshot: 2 KB, which each update sends
/// over the bus.
constexpr I64 kMaxSnapshotClasses = 16;

/// A field of the list where counts are of the type `Count`.
template <typename Field, typename Count = U64>
struct FieldOf {
  using Type = Field;
  static constexpr int kCounts = 0;
};
template <typename Count>
struct FieldOf<U64, Count> {
  using Type = Count;
  static constexpr int kCounts = 1;
};

// What is found in the rows or elements of an update is a struct of numbers of one size each: first
// kCounts of the type `Count`, then kReals doubles. A block of threads counts in 32 bits: 2^32 rows
// would take it hours.

/// What one update, or a part of its rows, adds.
template <typename Count>
struct TotalsOf {
#define PIG_ROWS(type, name, merge) typename FieldOf<type, Count>::Type name;
#include "metrics/state_fields.h"

  static constexpr int kCounts = 0
#define PIG_ROWS(type, name, merge) +FieldOf<type>::kCounts
#include "metrics/state_fields.h"
      ;
  static constexpr int kReals = 0
#define PIG_ROWS(type, name, merge) +static_cast<int>(sizeof(type) / sizeof(double))
#include "metrics/state_fields.h"
                                - kCounts;
  PIG_SHARED_INLINE static constexpr Merge merge_of(int) { return Merge::kSum; }
  PIG_SHARED_INLINE static TotalsOf none() { return TotalsOf(); }
};

using Totals = TotalsOf<U64>;
using BlockTotals = TotalsOf<unsigned>;

/// The index of one of its doubles.
#define PIG_REAL(name)                                                                  \
  static_cast<int>((__builtin_offsetof(Totals, name) - sizeof(U64) * Totals::kCounts) / \
                   sizeof(double))

#define PIG_FIELD(type, name, merge) FieldOf<type>::Type name;

/// A running value that update_scalar takes.
struct Scalar {
#define PIG_SCALAR PIG_FIELD
#include "metrics/state_fields.h"
};

struct State {
#define PIG_STATE PIG_FIELD
#define PIG_ROWS PIG_FIELD
#include "metrics/state_fields.h"
};

#undef PIG_FIELD

// Behind it, if the options want it, the confusion matrix: double[classes][classes], rows are
// targets.

constexpr U64 kStateBytes = sizeof(State);

/// How a tensor's numbers are stored.
enum Format : int { kNone, kFloat64, kFloat32, kFloat16, kBfloat16, kInt64, kInt32, kUint8 };
constexpr int kRealFormats = 4;  ///< those that logits may have; they stand first

/// Where the loss comes from; kCrossEntropy: it is computed from the logits.
enum LossKind : int { kNoLoss, kMeanLoss, kLossPerRow, kCrossEntropy };

constexpr int kMaxDims = 4;

/// One update's input. Rows are numbered over `sizes`, the last dimension fastest; strides are in
/// elements. It is handed to the kernel as it is.
struct Batch {
  const void* logits;
  const void* target;
  const void* weight;  ///< per row, or null
  const void* loss;    ///< one number, one per row, or null
  Format logits_format;
  Format target_format;
  Format weight_format;
  Format loss_format;
  LossKind loss_kind;
  int dims;
  I64 rows;
  I64 classes;
  I64 class_stride;
  I64 sizes[kMaxDims];
  U64 reciprocals[kMaxDims];  ///< as `reciprocal_of` says
  I64 logits_strides[kMaxDims];
  I64 target_strides[kMaxDims];
  I64 weight_strides[kMaxDims];
  I64 loss_strides[kMaxDims];
  I64 ignore_index;
  I64 topk[kMaxTopk];  ///< from the first 0 on not used
  int confusion;       ///< whether the state has a confusion matrix, of `classes` classes
  double ema;          ///< how much of a moving average remains; 0: there is none
  // Of a cross-entropy.
  const double* class_weight;  ///< one for each class, or null: all are 1
  double class_weight_sum;     ///< the number of classes where there are no weights
  double label_smoothing;
};

template <typename Real>
PIG_SHARED_INLINE bool is_finite(Real x) {
  return x - x == 0;
}

/// bfloat16 is the upper half of a float.
PIG_SHARED float bfloat16_to_float(unsigned short bits) {
  union {
    unsigned u;
    float f;
  } both;
  both.u = static_cast<unsigned>(bits) << 16;
  return both.f;
}

PIG_SHARED float half_to_float(unsigned short bits) {
#if defined(__CUDA_ARCH__)
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
#else
  union {
    unsigned u;
    float f;
  } both;
  const unsigned magnitude = bits & 0x7FFFu;
  if (magnitude < 0x400u) {  // zero and subnormal
    both.f = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
  } else {
    both.u = (magnitude << 13) + (magnitude < 0x7C00u ? 112u << 23 : 224u << 23);
  }
  both.u |= static_cast<unsigned>(bits & 0x8000u) << 16;
  return both.f;
#endif
}

/// A number as it is stored, in the low bits. What it means can be asked later: a kernel does not
/// wait for it here.
PIG_SHARED U64 load_bits(const void* data, Format format, I64 index) {
  if (format == kFloat64 || format == kInt64) return static_cast<const U64*>(data)[index];
  if (format == kFloat32 || format == kInt32) return static_cast<const unsigned*>(data)[index];
  if (format == kUint8) return static_cast<const unsigned char*>(data)[index];
  return static_cast<const unsigned short*>(data)[index];
}

PIG_SHARED double real_of_bits(U64 bits, Format format) {
  union {
    U64 u;
    double d;
  } wide;
  union {
    unsigned u;
    float f;
  } narrow;
  wide.u = bits;
  narrow.u = static_cast<unsigned>(bits);
  switch (format) {
    case kFloat64:
      return wide.d;
    case kFloat32:
      return narrow.f;
    case kFloat16:
      return half_to_float(static_cast<unsigned short>(bits));
    case kBfloat16:
      return bfloat16_to_float(static_cast<unsigned short>(bits));
    case kInt64:
      return static_cast<double>(static_cast<I64>(bits));
    case kInt32:
      return static_cast<int>(narrow.u);
    case kUint8:
      return static_cast<double>(bits);
    default:
      return 0;
  }
}

PIG_SHARED I64 index_of_bits(U64 bits, Format format) {
  return format == kInt32 ? static_cast<int>(static_cast<unsigned>(bits)) : static_cast<I64>(bits);
}

PIG_SHARED double load_real(const void* data, Format format, I64 index) {
  return real_of_bits(load_bits(data, format, index), format);
}

PIG_SHARED I64 load_index(const void* data, Format format, I64 index) {
  return index_of_bits(load_bits(data, format, index), format);
}

/// The greater of two, and the less; a NaN only where both are.
PIG_SHARED float greater(float a, float b) { return fmaxf(a, b); }
PIG_SHARED double greater(double a, double b) { return fmax(a, b); }
PIG_SHARED float lesser(float a, float b) { return fminf(a, b); }
PIG_SHARED double lesser(double a, double b) { return fmin(a, b); }

/// What dividing by a size takes where no number of an update is above 2^32: Lemire, Kaser, Kurz,
/// "Faster remainder by direct computation" (2019). 0 where there are more, or the size is 1.
PIG_SHARED U64 reciprocal_of(I64 size, I64 numbers) {
  if (size < 2 || numbers > I64{1} << 32) return 0;
  return ~0ull / static_cast<U64>(size) + 1;
}

PIG_SHARED I64 quotient(I64 number, I64 size, U64 reciprocal) {
  if (reciprocal == 0) return number / size;
  const U64 low = static_cast<unsigned>(number);
#if defined(__CUDA_ARCH__)
  return static_cast<I64>(__umul64hi(reciprocal, low));
#else
  // In halves: the carry of the lower product is all of it that counts.
  return static_cast<I64>(((reciprocal >> 32) * low + ((reciprocal & 0xFFFFFFFFu) * low >> 32)) >>
                          32);
#endif
}

/// Where a row's numbers lie, in elements.
struct RowOffsets {
  I64 logits = 0;
  I64 target = 0;
  I64 weight = 0;
  I64 loss = 0;
};

PIG_SHARED RowOffsets row_offsets(const Batch& batch, I64 row) {
  RowOffsets offsets;
#if defined(__CUDACC__)
#pragma unroll 1  // divisions are long
#endif
  for (int dim = batch.dims - 1; dim > 0; --dim) {
    const I64 outer = quotient(row, batch.sizes[dim], batch.reciprocals[dim]);
    const I64 at = row - outer * batch.sizes[dim];
    row = outer;
    offsets.logits += at * batch.logits_strides[dim];
    offsets.target += at * batch.target_strides[dim];
    offsets.weight += at * batch.weight_strides[dim];
    offsets.loss += at * batch.loss_strides[dim];
  }
  offsets.logits += row * batch.logits_strides[0];
  offsets.target += row * batch.target_strides[0];
  offsets.weight += row * batch.weight_strides[0];
  offsets.loss += row * batch.loss_strides[0];
  return offsets;
}

/// Decides whether a row counts, and counts it where it does not. Nothing but its target and weight
/// is read for that.
template <typename Count>
PIG_SHARED bool row_counts(const Batch& batch, I64 target, double weight, TotalsOf<Count>& totals) {
  if (target == batch.ignore_index) {
    ++totals.ignored;
    return false;
  }
  if (target < 0 || target >= batch.classes || !is_finite(weight)) {
    ++totals.invalid;
    return false;
  }
  return true;
}

/// What one pass finds of a row's logits x, in any order and precision of its own. A NaN among
/// them, or an infinite one, makes the sums what arithmetic makes of it, except that a logit of
/// minus infinity adds 0 to `shift_sum`, as its probability is 0.
struct RowSums {
  double max;
  double target;        ///< x of the target
  double exp_sum;       ///< of exp(x - max)
  double shift_sum;     ///< of exp(x - max) * (x - max)
  double weighted_sum;  ///< of class weight * (x - max); only where labels are smoothed
};

/// What a row's logits say where they are to give the loss.
struct RowScores {
  double loss;         ///< as torch's with reduction="none": smoothed, and weighted by class
  double loss_weight;  ///< of the target's class: torch's mean divides by the sum of these
  double nll;          ///< negative log-likelihood of the target, not smoothed and not weighted
  double entropy;      ///< of the softmax, in nats
};

/// Everything is made of exp(x - max) / sum, never of exp(x - log-sum-exp): rounding that would
/// cost digits.
PIG_SHARED RowScores score_row(const Batch& batch, I64 target, const RowSums& sums) {
  RowScores scores;
  const double log_sum = log(sums.exp_sum);
  const double smoothing = batch.label_smoothing;
  scores.nll = log_sum - (sums.target - sums.max);
  scores.loss_weight = batch.class_weight == nullptr ? 1 : batch.class_weight[target];
  scores.loss = scores.nll * scores.loss_weight;
  if (smoothing != 0)
    scores.loss =
        (1 - smoothing) * scores.loss + smoothing / static_cast<double>(batch.classes) *
                                            (batch.class_weight_sum * log_sum - sums.weighted_sum);
  scores.entropy = log_sum - sums.shift_sum / sums.exp_sum;
  return scores;
}

/// `loss_at` is where the row's loss lies, if rows have their own.
template <typename Count>
PIG_SHARED void add_row(const Batch& batch, I64 rank, bool finite, double weight, I64 loss_at,
                        TotalsOf<Count>& totals) {
  ++totals.count;
  totals.weight += weight;
  if (!finite) ++totals.nonfinite_rows;
#if defined(__CUDACC__)
#pragma unroll
#endif
  for (int i = 0; i < kMaxTopk; ++i) {
    if (batch.topk[i] == 0) break;
    totals.correct[i] += rank < batch.topk[i] ? weight : 0;
  }
  if (batch.loss_kind != kLossPerRow) return;
  const double loss = load_real(batch.loss, batch.loss_format, loss_at);
  if (is_finite(loss)) {
    totals.loss_sum += loss * weight;
    totals.loss_weight += weight;
  } else {
    ++totals.nonfinite_losses;
  }
}

/// Besides, where the logits are to give the loss.
template <typename Count>
PIG_SHARED void add_scores(const RowScores& scores, double weight, TotalsOf<Count>& totals) {
  if (is_finite(scores.loss)) {
    totals.loss_sum += scores.loss * weight;
    totals.loss_weight += scores.loss_weight * weight;
  } else {
    ++totals.nonfinite_losses;
  }
  if (is_finite(scores.nll)) {
    totals.nll_sum += scores.nll * weight;
    totals.nll_weight += weight;
  }
  if (is_finite(scores.entropy)) {
    totals.entropy_sum += scores.entropy * weight;
    totals.entropy_weight += weight;
  }
}

PIG_SHARED double number_of_bits(U64 bits) {
  union {
    U64 u;
    double d;
  } both;
  both.u = bits;
  return both.d;
}

PIG_SHARED double not_a_number() { return number_of_bits(0x7FF8000000000000ull); }
PIG_SHARED double infinity() { return number_of_bits(0x7FF0000000000000ull); }

template <typename Number>
PIG_SHARED_INLINE Number merged(Merge how, Number a, Number b) {
  if (how == Merge::kSum) return a + b;
  return (how == Merge::kLeast) == (b < a) ? b : a;
}

/// What changes nothing.
PIG_SHARED double neutral_of(Merge how) {
  return how == Merge::kSum ? 0 : how == Merge::kLeast ? infinity() : -infinity();
}

/// Both with the same shift, if they have one.
template <typename Found>
PIG_SHARED void add_totals(Found& into, const Found& part) {
  auto* const counts = reinterpret_cast<U64*>(&into);
  for (int i = 0; i < Found::kCounts; ++i) counts[i] += reinterpret_cast<const U64*>(&part)[i];
  auto* const reals = reinterpret_cast<double*>(counts + Found::kCounts);
  const auto* const added = reinterpret_cast<const double*>(&part) + Found::kCounts;
  for (int i = 0; i < Found::kReals; ++i) reals[i] = merged(Found::merge_of(i), reals[i], added[i]);
}

/// `first`: nothing stands in min and max yet.
PIG_SHARED void widen(double value, bool first, double& min, double& max) {
  if (first || value < min) min = value;
  if (first || value > max) max = value;
}

template <typename Number>
PIG_SHARED void add_field(Number& into, Number found) {
  into += found;
}
template <int kSize>
PIG_SHARED void add_field(double (&into)[kSize], const double (&found)[kSize]) {
  for (int i = 0; i < kSize; ++i)
    if (found[i] != 0) into[i] += found[i];
}

/// Adds what all rows of an update gave, and the update's loss, which becomes part of the rows'.
PIG_SHARED void fold_update(const Batch& batch, Totals& rows, State& state) {
  const bool has_mean = batch.loss_kind == kMeanLoss;
  // A loss of several rows is NaN when none of them was finite.
  const double mean =
      has_mean ? load_real(batch.loss, batch.loss_format, 0) : rows.loss_sum / rows.loss_weight;
  if (has_mean && is_finite(mean)) {
    rows.loss_weight = rows.weight;
    rows.loss_sum = mean * rows.weight;
  } else if (has_mean) {
    ++rows.nonfinite_losses;
  }
  if (batch.loss_kind != kCrossEntropy) {
    // A loss that is given is taken for the negative log-likelihood.
    rows.nll_sum = rows.loss_sum;
    rows.nll_weight = rows.loss_weight;
  }
  ++state.updates;
#define PIG_ROWS(type, name, merge) add_field(state.name, rows.name);
#include "metrics/state_fields.h"
  if (state.first_nonfinite_update == 0 && (rows.nonfinite_losses != 0 || rows.nonfinite_rows != 0))
    state.first_nonfinite_update = state.updates;
  for (int i = 0; i < kMaxTopk; ++i) {
    if (batch.topk[i] == 0) break;
    state.correct_weight[i] += rows.weight;
  }
  // Losses of rows say something where a row counted.
  if (!has_mean && (batch.loss_kind == kNoLoss || rows.count == 0)) return;
  ++state.losses;
  state.loss_last = mean;
  if (!is_finite(mean)) return;
  widen(mean, state.finite_losses++ == 0, state.loss_min, state.loss_max);
  state.loss_ema = batch.ema * state.loss_ema + (1 - batch.ema) * mean;
}

PIG_SHARED double* confusion_of(State& state) { return reinterpret_cast<double*>(&state + 1); }

}  // namespace pig::metrics
