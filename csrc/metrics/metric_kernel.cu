// SPDX-License-Identifier: Apache-2.0
//
// One kernel for everything in an update: ranks, counts, losses, the fold into the state and the
// snapshot for the host. NVRTC compiles it for the device at hand, beside the training.
//
// A row is read by one thread, a warp or a block, by the number of classes and by how they lie.
// Each block writes its totals to a place of its own in the launch's slot; the last one to finish
// adds them up in a fixed order, folds them into the state and publishes it.
//
// Which block is the last. Each adds its launch's share, a number that depends on the generation,
// to the slot's progress; block 0 also takes away the shares of all blocks. So what a whole launch
// adds is 0, and the block that brings the progress to 0 is the last. That is one addition per
// block, without a loop. Whatever launches meet in a slot and however their blocks mix, the
// progress is 0 once they are done: nothing they do to each other affects a later update.
//
// Launches that meet. The program has to order its updates, and updates on one stream are; each of
// kSlots streams has a slot of its own. Where a program doesn't, launches that share a slot
// overwrite each other's parts. So every word of a part carries its launch's generation, and the
// last block folds only if it has found its own in all of them: either all of an update is added
// or nothing. The shares of two or more unfinished launches have a sum of 0 only by chance, once in
// 2^50; the last block then finds parts of another generation, and adds nothing. A launch that no
// block folds is lost. The last block of those that met counts them: each launch is entered in the
// slot's launches by its block 0 before it can end, and whoever brings the progress to 0 takes what
// is entered, less the launch that it folds. A replay of a CUDA graph has the generation of the
// capture. Replays of one executable graph follow one another, and the one before is over.
//
// The state changes, and is published, under a lock that one thread of a last block takes. Its
// holder waits for nothing but memory, and a block that runs is not taken off its multiprocessor in
// favour of one that waits, so it always gets to the end; no other thread of its warp waits for the
// lock. Only a confusion matrix is changed by atomic operations, one per row, as the rows are read.
#include "metrics/metric_kernel.h"
#include "metrics/value_totals.h"

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

constexpr int kWarps = kThreads / 32;

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
#pragma unroll kUnroll
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

/// What is read of a row besides its logits. Nothing is computed from it until the row's turn, so
/// that nothing waits for it before.
struct RowHead {
  RowOffsets at;
  U64 target_bits;
  U64 weight_bits;
};

__device__ RowHead load_head(const Batch& batch, I64 row) {
  RowHead head;
  head.at = row_offsets(batch, row);
  head.target_bits = load_bits(batch.target, batch.target_format, head.at.target);
  head.weight_bits =
      batch.weight == nullptr ? 0 : load_bits(batch.weight, batch.weight_format, head.at.weight);
  return head;
}

template <Format kFormat, typename Group>
__device__ void add_row_of_logits(const UpdateParameters& p, const Group& group,
                                  const RowHead& head, BlockTotals& totals) {
  using Stored = typename Logits<kFormat>::Stored;
  using Real = typename Logits<kFormat>::Real;
  const Batch& batch = p.batch;
  const I64 target = index_of_bits(head.target_bits, batch.target_format);
  const double weight =
      batch.weight == nullptr ? 1 : real_of_bits(head.weight_bits, batch.weight_format);
  // All threads of the group agree; one of them counts.
  BlockTotals left_out{};
  if (!row_counts(batch, target, weight, left_out)) {
    if (group.rank() == 0) {
      totals.ignored += left_out.ignored;
      totals.invalid += left_out.invalid;
    }
    return;
  }
  const auto* logits = static_cast<const Stored*>(batch.logits) + head.at.logits;
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
  if (group.rank() == 0) add_row(batch, rank, nonfinite == 0, weight, head.at.loss, totals);
  if (batch.confusion == 0) return;
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
    atomicAdd(confusion_of(*p.launch.state) + target * batch.classes + predicted, weight);
}

template <Format kFormat, typename Group>
__device__ void add_rows(const UpdateParameters& p, BlockTotals& totals) {
  const Group group;
  constexpr int kGroups = kThreads / Group::kSize;
  const I64 step = static_cast<I64>(gridDim.x) * kGroups;
  I64 row = static_cast<I64>(blockIdx.x) * kGroups + group.index();
  if constexpr (Group::kSize == 1) {  // its registers are full, and there are many of it
    for (; row < p.batch.rows; row += step)
      add_row_of_logits<kFormat>(p, group, load_head(p.batch, row), totals);
    return;
  }
  if (row >= p.batch.rows) return;
  RowHead head = load_head(p.batch, row);
  for (;;) {
    row += step;
    const bool more = row < p.batch.rows;
    RowHead next;
    if (more) next = load_head(p.batch, row);  // it arrives while the current row is read
    add_row_of_logits<kFormat>(p, group, head, totals);
    if (!more) return;
    head = next;
  }
}

// --- a block's totals, and all blocks' ---

constexpr int kCounts = 5;  // the counts of Totals, which stand first
constexpr int kSums = 1 + kMaxTopk + 6;
static_assert(sizeof(BlockTotals) == (kCounts + 1) * 4 + kSums * 8);
static_assert(sizeof(Totals) == (kCounts + kSums) * 8);
static_assert(kPartWords == kCounts + 2 * kSums);

/// Whether a sum is used by this update: others are 0, and not handed on.
__device__ bool is_used(const Batch& batch, int sum) {
  if (sum == 0) return true;
  if (sum <= kMaxTopk) return batch.topk[sum - 1] != 0;
  if (sum <= kMaxTopk + 2 && batch.loss_kind == kLossPerRow) return true;
  return batch.loss_kind == kCrossEntropy;
}

template <typename Number>
__device__ Number sum_of_warp(Number value) {
  if (!__any_sync(0xFFFFFFFFu, value != 0)) return 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  return value;
}

/// The sum over a warp, in its first lane.
__device__ void add_warp(const Batch& batch, BlockTotals& totals) {
  totals.count = sum_of_warp(totals.count);
  totals.ignored = sum_of_warp(totals.ignored);
  totals.invalid = sum_of_warp(totals.invalid);
  totals.nonfinite_rows = sum_of_warp(totals.nonfinite_rows);
  totals.nonfinite_losses = sum_of_warp(totals.nonfinite_losses);
  totals.weight = sum_of_warp(totals.weight);
#pragma unroll
  for (int i = 0; i < kMaxTopk; ++i)
    if (batch.topk[i] != 0) totals.correct[i] = sum_of_warp(totals.correct[i]);
  if (batch.loss_kind != kLossPerRow && batch.loss_kind != kCrossEntropy) return;
  totals.loss_sum = sum_of_warp(totals.loss_sum);
  totals.loss_weight = sum_of_warp(totals.loss_weight);
  if (batch.loss_kind != kCrossEntropy) return;
  totals.nll_sum = sum_of_warp(totals.nll_sum);
  totals.nll_weight = sum_of_warp(totals.nll_weight);
  totals.entropy_sum = sum_of_warp(totals.entropy_sum);
  totals.entropy_weight = sum_of_warp(totals.entropy_weight);
}

/// The totals of each warp of the block.
__device__ BlockTotals* totals_of_warps() {
  __shared__ BlockTotals warps[kWarps];
  return warps;
}

/// A word of a part: half of a number, and the launch's generation.
__device__ void store_half(U64* word, unsigned generation, unsigned half) {
  // Volatile is relaxed in PTX: another launch may be at it, and such a word is never torn.
  *reinterpret_cast<volatile U64*>(word) = static_cast<U64>(generation) << 32 | half;
}

/// Adds up the warps' totals and writes the sums as the block's part, by the threads of one warp.
__device__ void store_part(const UpdateParameters& p, const BlockTotals* warps, Slot& slot) {
  const int lane = threadIdx.x;
  if (lane < kCounts) {
    unsigned count = 0;
    for (int warp = 0; warp < kWarps; ++warp)
      count += reinterpret_cast<const unsigned*>(&warps[warp])[lane];
    store_half(&slot.parts[lane][blockIdx.x], p.launch.generation, count);
  } else if (lane < kCounts + kSums && is_used(p.batch, lane - kCounts)) {
    const int i = lane - kCounts;
    double sum = 0;
    for (int warp = 0; warp < kWarps; ++warp) sum += (&warps[warp].weight)[i];
    const auto bits = static_cast<U64>(__double_as_longlong(sum));
    store_half(&slot.parts[kCounts + 2 * i][blockIdx.x], p.launch.generation,
               static_cast<unsigned>(bits >> 32));
    store_half(&slot.parts[kCounts + 2 * i + 1][blockIdx.x], p.launch.generation,
               static_cast<unsigned>(bits));
  }
}

/// The sum of one number over all blocks' parts, of which each thread of a warp takes some; `words`
/// is 1 for a count and 2 for a sum. `own` becomes false where a part is another launch's.
template <int kWords, typename Number>
__device__ Number sum_of_parts(const Slot& slot, int word, unsigned generation, bool& own) {
  constexpr int kAtOnce = 6;  // loads that are under way together
  Number sum = 0;
  for (unsigned first = threadIdx.x % 32; first < gridDim.x; first += 32 * kAtOnce) {
    U64 loaded[kWords][kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k)
#pragma unroll
      for (int i = 0; i < kWords; ++i)
        if (first + 32 * k < gridDim.x)
          loaded[i][k] =
              *reinterpret_cast<const volatile U64*>(&slot.parts[word + i][first + 32 * k]);
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (first + 32 * k >= gridDim.x) break;
      own &= loaded[0][k] >> 32 == generation && loaded[kWords - 1][k] >> 32 == generation;
      if constexpr (kWords == 1) {
        sum += loaded[0][k] & 0xFFFFFFFFu;
      } else {
        sum += __longlong_as_double(
            static_cast<I64>(loaded[0][k] << 32 | (loaded[1][k] & 0xFFFFFFFFu)));
      }
    }
  }
  return sum_of_warp(sum);
}

/// The sum over all blocks, by the threads of the last one. False where parts were overwritten.
__device__ bool add_blocks(const UpdateParameters& p, const Slot& slot, Totals& totals) {
  auto* counts = reinterpret_cast<U64*>(&totals);
  auto* sums = reinterpret_cast<double*>(counts + kCounts);
  const bool is_first = threadIdx.x % 32 == 0;
  bool own = true;
  const int warp = static_cast<int>(threadIdx.x / 32);
  int next = 0;  // the numbers that are used go around the warps
  for (int i = 0; i < kCounts; ++i) {
    if (next++ % kWarps != warp) continue;
    const U64 count = sum_of_parts<1, U64>(slot, i, p.launch.generation, own);
    if (is_first) counts[i] = count;
  }
  for (int i = 0; i < kSums; ++i) {
    double sum = 0;
    if (is_used(p.batch, i)) {
      if (next++ % kWarps != warp) continue;
      sum = sum_of_parts<2, double>(slot, kCounts + 2 * i, p.launch.generation, own);
    } else if (warp != 0) {
      continue;
    }
    if (is_first) sums[i] = sum;
  }
  return __syncthreads_and(own);
}

// --- the state ---

/// By one thread of a block.
__device__ void lock(unsigned& word) {
  while (atomicCAS(&word, 0u, 1u) != 0) {
  }
  __threadfence();
}

__device__ void unlock(unsigned& word) {
  __threadfence();
  atomicExch(&word, 0u);
}

/// Copies the state into the snapshot, by all threads of the block that has the lock.
__device__ void publish(const LaunchParameters& p) {
  __shared__ unsigned scalars;
  auto* sequence = reinterpret_cast<volatile U64*>(&p.snapshot->sequence);
  U64 published = 0;
  if (threadIdx.x == 0) {
    published = p.scratch->sequence + 2;
    // A graph that was captured earlier knows of fewer.
    scalars = p.scratch->scalars > p.scalars ? p.scratch->scalars : p.scalars;
    p.scratch->scalars = scalars;
    p.scratch->sequence = published;
    *sequence = published - 1;
    __threadfence_system();
  }
  __syncthreads();  // of thread 0 also what it has folded
  constexpr unsigned kHeadWords = (sizeof(State) - sizeof(State::scalars)) / 8;
  constexpr unsigned kStateWords = sizeof(State) / 8;
  const unsigned front = kHeadWords + scalars * (sizeof(Scalar) / 8);
  const auto* from = reinterpret_cast<const volatile U64*>(p.state);
  auto* to = reinterpret_cast<volatile U64*>(&p.snapshot->state);
  for (unsigned i = threadIdx.x; i < front + p.tail_words; i += kThreads) {
    const unsigned word = i < front ? i : kStateWords + (i - front);
    to[word] = from[word];
  }
  if (threadIdx.x == 0) *reinterpret_cast<volatile U64*>(&p.snapshot->lost) = p.scratch->lost;
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) *sequence = published;
}

/// What a launch's blocks add to its slot's progress: all of them together 0. Odd, so that no part
/// of them is.
__device__ U64 share_of(const LaunchParameters& p) {
  U64 share = p.generation * 0x9E3779B97F4A7C15ull;
  share = (share ^ share >> 32) * 0xD6E8FEB86659FD93ull;
  share = (share ^ share >> 32) | 1;
  return blockIdx.x == 0 ? share - share * gridDim.x : share;
}

/// Hands on the totals of the warps. What follows the rows is the same for all formats: one copy of
/// it serves all kernels.
__device__ __noinline__ void finish(const UpdateParameters& p, const BlockTotals* warps) {
  __shared__ bool is_last;
  Slot& slot = p.launch.scratch->slots[p.launch.slot];
  __syncthreads();  // the warps' totals are there
  if (threadIdx.x < 32) {
    store_part(p, warps, slot);
    __syncwarp();
    if (threadIdx.x == 0) {
      if (blockIdx.x == 0) atomicAdd(&slot.launches, 1ull);
      const U64 share = share_of(p.launch);
      __threadfence();
      is_last = atomicAdd(&slot.progress, share) + share == 0;
      if (is_last) __threadfence();  // the barrier passes it on to the others
    }
  }
  __syncthreads();
  if (!is_last) return;
  __shared__ Totals totals;
  const bool is_whole = add_blocks(p, slot, totals);
  Scratch& scratch = *p.launch.scratch;
  if (threadIdx.x == 0) {
    lock(scratch.lock);
    // Under the lock: where two launches met here, one finds both and the other none. In another
    // order than that of the lock, `lost` would be one below zero in between.
    const U64 lost = atomicExch(&slot.launches, 0ull) - is_whole;
    scratch.lost += lost;
    p.launch.state->updates += lost;
    if (is_whole) fold_update(p.batch, totals, *p.launch.state);
  }
  publish(p.launch);
  if (threadIdx.x == 0) unlock(scratch.lock);
}

template <Format kFormat, typename Group>
__device__ void update(const UpdateParameters& p) {
  BlockTotals* const warps = totals_of_warps();
  BlockTotals& of_warp = warps[threadIdx.x / 32];
  if constexpr (Group::kSize == 1) {
    BlockTotals totals{};
    add_rows<kFormat, Group>(p, totals);
    add_warp(p.batch, totals);
    if (threadIdx.x % 32 == 0) of_warp = totals;
  } else {  // only the first lane of a warp adds to it
    if (threadIdx.x % 32 == 0) of_warp = {};
    add_rows<kFormat, Group>(p, of_warp);
  }
  finish(p, warps);
}

}  // namespace
}  // namespace pig::metrics

#define PIG_UPDATE(name, format, group)                                                    \
  extern "C" __global__ void __launch_bounds__(pig::metrics::kThreads,                     \
                                               pig::metrics::kBlocksPerProcessor)          \
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
    lock(p.launch.scratch->lock);
    fold_number(value, p.ema, p.launch.state->scalars[p.slot]);
  }
  publish(p.launch);
  if (threadIdx.x == 0) unlock(p.launch.scratch->lock);
}
