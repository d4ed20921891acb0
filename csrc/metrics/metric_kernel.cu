// SPDX-License-Identifier: Apache-2.0
//
// One kernel for everything in an update: ranks, counts, losses, the fold into the state and the
// snapshot for the host. NVRTC compiles it for the device at hand, beside the training.
//
// A row is read by one thread, a warp or a block, by the number of classes and by how they lie.
// Each block writes its totals to a place of its own; the last one to finish adds them up in a
// fixed order, folds them into the state and publishes it. So there is one atomic operation per
// block, and one per row where a confusion matrix is kept.
#include "metrics/metric_kernel.h"

namespace pig::metrics {
namespace {

// --- what the formats are ---

template <Format kFormat>
struct Logits {
  using Stored = unsigned short;
  using Real = float;
  static __device__ float real(unsigned short bits) {
    return kFormat == kFloat16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
};

template <>
struct Logits<kFloat32> {
  using Stored = float;
  using Real = float;
  static __device__ float real(float x) { return x; }
};

template <>
struct Logits<kFloat64> {
  using Stored = double;
  using Real = double;
  static __device__ double real(double x) { return x; }
};

// --- the threads that share a row ---

struct Best {
  double value;
  I64 index;
};

/// Whether `a` stands before `b` in the order of torch.argmax.
__device__ bool stands_before(const Best& a, const Best& b) {
  const bool a_is_nan = a.value != a.value, b_is_nan = b.value != b.value;
  if (a_is_nan != b_is_nan) return a_is_nan;
  if (!a_is_nan && a.value != b.value) return a.value > b.value;
  return a.index < b.index;
}

struct OneThread {
  static constexpr int kSize = 1;
  __device__ int rank() const { return 0; }
  __device__ int index() const { return threadIdx.x; }
  __device__ void sum(int&, int&) const {}
  __device__ Best best(const Best& own) const { return own; }
};

struct Warp {
  static constexpr int kSize = 32;
  __device__ int rank() const { return threadIdx.x % 32; }
  __device__ int index() const { return threadIdx.x / 32; }
  __device__ void sum(int& count, int& flags) const {
    for (int step = 16; step > 0; step /= 2) {
      count += __shfl_xor_sync(0xFFFFFFFFu, count, step);
      flags |= __shfl_xor_sync(0xFFFFFFFFu, flags, step);
    }
  }
  __device__ Best best(Best own) const {
    for (int step = 16; step > 0; step /= 2) {
      const Best other{__shfl_xor_sync(0xFFFFFFFFu, own.value, step),
                       __shfl_xor_sync(0xFFFFFFFFu, own.index, step)};
      if (stands_before(other, own)) own = other;
    }
    return own;
  }
};

struct Block {
  static constexpr int kSize = kThreads;
  static constexpr int kWarps = kThreads / 32;
  __device__ int rank() const { return threadIdx.x; }
  __device__ int index() const { return 0; }
  __device__ void sum(int& count, int& flags) const {
    __shared__ int counts[kWarps];
    __shared__ int all_flags[kWarps];
    Warp().sum(count, flags);
    __syncthreads();  // the row before has been read
    if (threadIdx.x % 32 == 0) {
      counts[threadIdx.x / 32] = count;
      all_flags[threadIdx.x / 32] = flags;
    }
    __syncthreads();
    count = 0;
    for (int i = 0; i < kWarps; ++i) {
      count += counts[i];
      flags |= all_flags[i];
    }
  }
  __device__ Best best(Best own) const {
    __shared__ Best all[kWarps];
    own = Warp().best(own);
    __syncthreads();
    if (threadIdx.x % 32 == 0) all[threadIdx.x / 32] = own;
    __syncthreads();
    for (int i = 0; i < kWarps; ++i)
      if (stands_before(all[i], own)) own = all[i];
    return own;
  }
};

// --- a row ---

/// Calls `each(base, k, logit)` for the logits base + k of this thread's share of a row; the base
/// is the same for all of one load. Contiguous rows are read 16 bytes at a time.
template <Format kFormat, int kUnroll, typename Group, typename Each>
__device__ void for_each_logit(const typename Logits<kFormat>::Stored* row, I64 classes, I64 stride,
                               const Group& group, Each each) {
  using Stored = typename Logits<kFormat>::Stored;
  constexpr int kPerLoad = 16 / sizeof(Stored);
  if constexpr (Group::kSize == 1) {
    for (I64 c = 0; c < classes; ++c) each(c, 0, Logits<kFormat>::real(row[c * stride]));
  } else {
    const int misaligned = static_cast<int>(reinterpret_cast<U64>(row) % 16 / sizeof(Stored));
    I64 head = misaligned == 0 ? 0 : kPerLoad - misaligned;
    if (head > classes) head = classes;
    const I64 loads = (classes - head) / kPerLoad;
    if (group.rank() < head) each(group.rank(), 0, Logits<kFormat>::real(row[group.rank()]));
    struct alignas(16) Load {
      Stored values[kPerLoad];
    };
    const auto* at = reinterpret_cast<const Load*>(row + head);
#pragma unroll kUnroll
    for (I64 i = group.rank(); i < loads; i += Group::kSize) {
      const Load load = at[i];
#pragma unroll
      for (int k = 0; k < kPerLoad; ++k)
        each(head + i * kPerLoad, k, Logits<kFormat>::real(load.values[k]));
    }
    const I64 tail = head + loads * kPerLoad + group.rank();
    if (tail < classes) each(tail, 0, Logits<kFormat>::real(row[tail]));
  }
}

/// Where a class lies relative to a load: below 0 before it, above 7 behind it.
__device__ int place_in_load(I64 position, I64 base) {
  const I64 place = position - base;
  return place < 0 ? -1 : place > 8 ? 8 : static_cast<int>(place);
}

template <Format kFormat, typename Group>
__device__ void add_rows(const UpdateParameters& p, Totals& totals) {
  using Stored = typename Logits<kFormat>::Stored;
  using Real = typename Logits<kFormat>::Real;
  const Batch& batch = p.batch;
  const Group group;
  constexpr int kGroups = kThreads / Group::kSize;
  for (I64 row = static_cast<I64>(blockIdx.x) * kGroups + group.index(); row < batch.rows;
       row += static_cast<I64>(gridDim.x) * kGroups) {
    const RowOffsets at = row_offsets(batch, row);
    const I64 target = load_index(batch.target, batch.target_format, at.target);
    const double weight =
        batch.weight == nullptr ? 1 : load_real(batch.weight, batch.weight_format, at.weight);
    // All threads of the group agree; one of them counts.
    Totals left_out;
    if (!row_counts(batch, target, weight, left_out)) {
      if (group.rank() == 0) {
        totals.ignored += left_out.ignored;
        totals.invalid += left_out.invalid;
      }
      continue;
    }
    const auto* logits = static_cast<const Stored*>(batch.logits) + at.logits;
    const Real own = Logits<kFormat>::real(logits[target * batch.class_stride]);
    int rank = 0;
    Real zeros = 0;  // stays 0 as long as all are finite
    if (own == own) {
      for_each_logit<kFormat, 2>(logits, batch.classes, batch.class_stride, group,
                                 [&](I64 base, int k, Real x) {
                                   const int place = place_in_load(target, base);
                                   rank += k != place && outranks(x, own, k < place);
                                   zeros += x * 0;
                                 });
    } else {
      zeros = own;
      for_each_logit<kFormat, 1>(
          logits, batch.classes, batch.class_stride, group,
          [&](I64 base, int k, Real x) { rank += x != x && k < place_in_load(target, base); });
    }
    int nonfinite = zeros != 0;
    group.sum(rank, nonfinite);
    if (group.rank() == 0) add_row(batch, rank, nonfinite == 0, weight, at, totals);
    if (batch.confusion == 0) continue;
    I64 predicted = target;
    if (rank != 0) {
      Best best{0, batch.classes};
      bool any = false;
      for_each_logit<kFormat, 1>(logits, batch.classes, batch.class_stride, group,
                                 [&](I64 base, int k, Real x) {
                                   const Best candidate{static_cast<double>(x), base + k};
                                   if (!any || stands_before(candidate, best)) best = candidate;
                                   any = true;
                                 });
      if (!any) best = {-__longlong_as_double(0x7FF0000000000000LL), batch.classes};
      predicted = group.best(best).index;
    }
    if (group.rank() == 0)
      atomicAdd(confusion_of(*p.state) + target * batch.classes + predicted, weight);
  }
}

// --- a block's totals, and all blocks' ---

constexpr int kTotalsWords = sizeof(Totals) / 8;
constexpr int kCounts = 5;  // the words of Totals that are integers; they stand first
static_assert(sizeof(Totals) == (kCounts + 1 + kMaxTopk + 2) * 8);

__device__ U64 add_words(int word, U64 a, U64 b) {
  if (word < kCounts) return a + b;
  return static_cast<U64>(__double_as_longlong(__longlong_as_double(static_cast<I64>(a)) +
                                               __longlong_as_double(static_cast<I64>(b))));
}

__device__ U64 sum_of_warp(int word, U64 value) {
  for (int step = 16; step > 0; step /= 2)
    value = add_words(word, value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  return value;
}

/// The sum of all threads' totals, in thread 0.
__device__ void add_block(Totals& totals) {
  constexpr int kWarps = kThreads / 32;
  __shared__ U64 words[kWarps][kTotalsWords];
  auto* own = reinterpret_cast<U64*>(&totals);
#pragma unroll 1
  for (int word = 0; word < kTotalsWords; ++word) {
    const U64 sum = sum_of_warp(word, own[word]);
    if (threadIdx.x % 32 == 0) words[threadIdx.x / 32][word] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll 1
  for (int word = 0; word < kTotalsWords; ++word) {
    own[word] = words[0][word];
    for (int warp = 1; warp < kWarps; ++warp)
      own[word] = add_words(word, own[word], words[warp][word]);
  }
}

/// The sum over all blocks, by the threads of the last one; in thread 0.
__device__ void add_blocks(const Slot& slot, Totals& totals) {
  __shared__ U64 words[kTotalsWords];
  for (int word = threadIdx.x / 32; word < kTotalsWords; word += kThreads / 32) {
    U64 sum = 0;
    for (unsigned block = threadIdx.x % 32; block < gridDim.x; block += 32) {
      const volatile U64* part = slot.parts[word];
      sum = add_words(word, sum, part[block]);
    }
    sum = sum_of_warp(word, sum);
    if (threadIdx.x % 32 == 0) words[word] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  auto* own = reinterpret_cast<U64*>(&totals);
#pragma unroll 1
  for (int word = 0; word < kTotalsWords; ++word) own[word] = words[word];
}

/// Copies the state into the snapshot, by all threads of one block.
__device__ void publish(const State& state, Scratch& scratch, I64 confusion_classes,
                        Snapshot* snapshot) {
  if (snapshot == nullptr) return;
  auto* sequence = reinterpret_cast<volatile U64*>(&snapshot->sequence);
  __shared__ U64 before;
  __syncthreads();
  if (threadIdx.x == 0) {
    before = scratch.sequence;
    scratch.sequence = before + 2;
    *sequence = before + 1;
    __threadfence_system();
  }
  __syncthreads();
  const I64 matrix =
      confusion_classes <= kMaxSnapshotClasses ? confusion_classes * confusion_classes : 0;
  const I64 words = static_cast<I64>(sizeof(State) / 8) + matrix;
  const auto* from = reinterpret_cast<const volatile U64*>(&state);
  auto* to = reinterpret_cast<volatile U64*>(&snapshot->state);
  for (I64 i = threadIdx.x; i < words; i += kThreads) to[i] = from[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *sequence = before + 2;
}

/// What follows the rows, whatever their format: one copy of it serves all kernels.
__device__ __noinline__ void finish(const UpdateParameters& p, Totals& totals) {
  add_block(totals);
  Slot& slot = p.scratch->slots[p.slot];
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    const auto* words = reinterpret_cast<const U64*>(&totals);
    for (int word = 0; word < kTotalsWords; ++word) slot.parts[word][blockIdx.x] = words[word];
    __threadfence();
    is_last = atomicAdd(&slot.progress, 1ull) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  add_blocks(slot, totals);
  if (threadIdx.x == 0) {
    slot.progress = 0;
    fold_update(p.batch, totals, *p.state);
    __threadfence();
  }
  publish(*p.state, *p.scratch, p.batch.confusion != 0 ? p.batch.classes : 0, p.snapshot);
}

template <Format kFormat, typename Group>
__device__ void update(const UpdateParameters& p) {
  Totals totals;
  add_rows<kFormat, Group>(p, totals);
  finish(p, totals);
}

}  // namespace
}  // namespace pig::metrics

#define PIG_UPDATE(name, format, group)                                                    \
  extern "C" __global__ void __launch_bounds__(pig::metrics::kThreads, 2)                  \
      pig_metric_update_##name(const __grid_constant__ pig::metrics::UpdateParameters p) { \
    pig::metrics::update<pig::metrics::format, pig::metrics::group>(p);                    \
  }

PIG_UPDATE(float64_thread, kFloat64, OneThread)
PIG_UPDATE(float64_warp, kFloat64, Warp)
PIG_UPDATE(float64_block, kFloat64, Block)
PIG_UPDATE(float32_thread, kFloat32, OneThread)
PIG_UPDATE(float32_warp, kFloat32, Warp)
PIG_UPDATE(float32_block, kFloat32, Block)
PIG_UPDATE(float16_thread, kFloat16, OneThread)
PIG_UPDATE(float16_warp, kFloat16, Warp)
PIG_UPDATE(float16_block, kFloat16, Block)
PIG_UPDATE(bfloat16_thread, kBfloat16, OneThread)
PIG_UPDATE(bfloat16_warp, kBfloat16, Warp)
PIG_UPDATE(bfloat16_block, kBfloat16, Block)

extern "C" __global__ void __launch_bounds__(pig::metrics::kThreads)
    pig_metric_scalar(const __grid_constant__ pig::metrics::ScalarParameters p) {
  using namespace pig::metrics;
  if (threadIdx.x == 0) {
    const double value = p.value == nullptr ? p.number : load_real(p.value, p.format, 0);
    fold_scalar(value, p.state->scalars[p.slot]);
    __threadfence();
  }
  __syncthreads();
  publish(*p.state, *p.scratch, p.confusion_classes, p.snapshot);
}
