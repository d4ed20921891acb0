// SPDX-License-Identifier: Apache-2.0
//
// The state of a MetricAccumulator and the arithmetic on it: once for the CPU and the kernel.
//
// It includes nothing, because NVRTC and the C++ compiler both read it. The state is plain
// 8-byte words in one tensor; all bytes zero is the state of no update. Python reads the same
// layout (pyinstrument_gpu/metrics/state.py); a test compares the two.
#pragma once

#if defined(__CUDACC__)
#define PIG_SHARED __host__ __device__ inline
#else
#define PIG_SHARED inline
#endif

namespace pig::metrics {

using U64 = unsigned long long;
using I64 = long long;

constexpr int kMaxTopk = 8;
constexpr int kMaxScalars = 16;
/// Confusion matrices up to this many classes are part of a snapshot: 2 KB, which each update sends
/// over the bus.
constexpr I64 kMaxSnapshotClasses = 16;

/// What one update, or a part of its rows, adds.
template <typename Count>
struct TotalsOf {
  Count count;    ///< rows whose target is a class
  Count ignored;  ///< rows whose target is ignore_index
  Count invalid;  ///< rows whose target is no class, or whose weight is not finite
  Count nonfinite_rows;
  Count nonfinite_losses;
  double weight;  ///< of the rows counted
  double correct[kMaxTopk];
  double loss_sum;     ///< of finite losses per row, weighted
  double loss_weight;  ///< of the rows with a finite loss
};

using Totals = TotalsOf<U64>;
/// Of one block of threads: 2^32 rows would take it hours.
using BlockTotals = TotalsOf<unsigned>;

/// A running value that update_scalar takes.
struct Scalar {
  U64 count;  ///< of finite values
  U64 nonfinite;
  double sum;
  double min;
  double max;
  double last;
};

struct State {
  U64 updates;  ///< since the accumulator was made; the newest update's number
  U64 resets;   ///< a snapshot from before a reset is told by it
  // From here on all is zero after a reset.
  U64 count;
  U64 ignored;
  U64 invalid;
  U64 nonfinite_rows;
  U64 nonfinite_losses;
  U64 first_nonfinite_update;  ///< 0: none
  double weight;
  double loss_sum;
  double loss_weight;
  U64 losses;         ///< updates that had a loss
  U64 finite_losses;  ///< those of them whose mean was finite
  double loss_min;
  double loss_max;
  double loss_last;
  double correct[kMaxTopk];
  Scalar scalars[kMaxScalars];
  // Behind it the confusion matrix: double[classes][classes], rows are targets.
};

constexpr U64 kStateBytes = sizeof(State);
static_assert(kStateBytes == (24 + 6 * kMaxScalars) * 8);

/// How a tensor's numbers are stored.
enum Format : int { kNone, kFloat64, kFloat32, kFloat16, kBfloat16, kInt64, kInt32, kUint8 };
constexpr int kRealFormats = 4;  ///< those that logits may have; they stand first

enum LossKind : int { kNoLoss, kMeanLoss, kLossPerRow };

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
  I64 logits_strides[kMaxDims];
  I64 target_strides[kMaxDims];
  I64 weight_strides[kMaxDims];
  I64 loss_strides[kMaxDims];
  I64 ignore_index;
  I64 topk[kMaxTopk];  ///< from the first 0 on not used
  int confusion;       ///< whether the state has a confusion matrix, of `classes` classes
};

/// Whether logit `x` stands before the target's in the order of torch.argmax: greater first, NaN
/// greatest, equal ones by index. A NaN target is not for it.
template <typename Real>
PIG_SHARED bool outranks(Real x, Real target, bool earlier) {
  // Unordered compares: true for a NaN.
  return earlier ? !(x < target) : !(x <= target);
}

template <typename Real>
PIG_SHARED bool is_finite(Real x) {
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
  for (int dim = batch.dims - 1; dim >= 0; --dim) {
    const I64 at = dim == 0 ? row : row % batch.sizes[dim];
    row /= batch.sizes[dim];
    offsets.logits += at * batch.logits_strides[dim];
    offsets.target += at * batch.target_strides[dim];
    offsets.weight += at * batch.weight_strides[dim];
    offsets.loss += at * batch.loss_strides[dim];
  }
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

PIG_SHARED void add_totals(Totals& into, const Totals& part) {
  into.count += part.count;
  into.ignored += part.ignored;
  into.invalid += part.invalid;
  into.nonfinite_rows += part.nonfinite_rows;
  into.nonfinite_losses += part.nonfinite_losses;
  into.weight += part.weight;
  for (int i = 0; i < kMaxTopk; ++i) into.correct[i] += part.correct[i];
  into.loss_sum += part.loss_sum;
  into.loss_weight += part.loss_weight;
}

/// `first`: nothing stands in min and max yet.
PIG_SHARED void widen(double value, bool first, double& min, double& max) {
  if (first || value < min) min = value;
  if (first || value > max) max = value;
}

/// Adds what all rows of an update gave, and the update's loss.
PIG_SHARED void fold_update(const Batch& batch, const Totals& totals, State& state) {
  // First of all: a kernel would wait for it after it has written the rest.
  const double mean_loss =
      batch.loss_kind == kMeanLoss ? load_real(batch.loss, batch.loss_format, 0) : 0;
  ++state.updates;
  state.count += totals.count;
  state.ignored += totals.ignored;
  state.invalid += totals.invalid;
  state.nonfinite_rows += totals.nonfinite_rows;
  state.weight += totals.weight;
  for (int i = 0; i < kMaxTopk; ++i) state.correct[i] += totals.correct[i];

  U64 nonfinite_losses = totals.nonfinite_losses;
  double loss_sum = totals.loss_sum;
  double loss_weight = totals.loss_weight;
  // A per-row loss says something where a row counted.
  const bool has_loss =
      batch.loss_kind == kMeanLoss || (batch.loss_kind == kLossPerRow && totals.count != 0);
  if (has_loss) {
    double mean;
    if (batch.loss_kind == kMeanLoss) {
      mean = mean_loss;
      if (is_finite(mean)) {
        loss_weight = totals.weight;
        loss_sum = mean * loss_weight;
      } else {
        ++nonfinite_losses;
      }
    } else {
      mean = loss_sum / loss_weight;  // NaN when no row's loss was finite
    }
    ++state.losses;
    state.loss_last = mean;
    if (is_finite(mean)) widen(mean, state.finite_losses++ == 0, state.loss_min, state.loss_max);
  }
  state.nonfinite_losses += nonfinite_losses;
  state.loss_sum += loss_sum;
  state.loss_weight += loss_weight;
  if (state.first_nonfinite_update == 0 && (nonfinite_losses != 0 || totals.nonfinite_rows != 0))
    state.first_nonfinite_update = state.updates;
}

PIG_SHARED void fold_scalar(double value, Scalar& scalar) {
  scalar.last = value;
  if (!is_finite(value)) {
    ++scalar.nonfinite;
    return;
  }
  widen(value, scalar.count++ == 0, scalar.min, scalar.max);
  scalar.sum += value;
}

PIG_SHARED double* confusion_of(State& state) { return reinterpret_cast<double*>(&state + 1); }

}  // namespace pig::metrics
