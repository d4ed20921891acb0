// SPDX-License-Identifier: Apache-2.0
//
// What the blocks of a launch do once they have read their rows: they hand on what they have found,
// and the last one adds all of it to the state and publishes that.
//
// Each block writes its totals to a place of its own in the launch's slot; the last one to finish
// merges them in a fixed order, folds them into the state and publishes it.
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
// lock. Only the confusion matrix, behind the state, is changed by atomic operations as the rows
// are read.
#pragma once

#include "metrics/metric_kernel.h"

namespace pig::metrics {
namespace {

constexpr int kWarps = kThreads / 32;

// What is found in the rows of an update depends on its kind, that is, on the parameters of its
// kernel (metric_kernel.h). The order of all merges depends on the number of blocks alone, so that
// the same update of the same state always gives the same.

template <typename Kind>
using OfBlock = typename Kind::template Found<unsigned>;
template <typename Kind>
using OfLaunch = typename Kind::template Found<U64>;

/// The shared memory in which the warps of a block merge what they have found.
template <typename Kind>
struct Shared {
  OfBlock<Kind> warps[kWarps];
  OfLaunch<Kind> all;
};

// Not in a template: the emulator of the tests would not find it there.
__device__ U64* shared_words() {
  constexpr unsigned kWords = (sizeof(Shared<UpdateParameters>)) / sizeof(U64);
  static_assert(sizeof(Shared<ValuesParameters>) <= sizeof(Shared<UpdateParameters>));
  __shared__ U64 words[kWords];
  return words;
}

template <typename Kind>
__device__ Shared<Kind>& shared() {
  return *reinterpret_cast<Shared<Kind>*>(shared_words());
}

/// Over a warp, in all of its lanes.
template <typename Number>
__device__ Number merge_warp(Merge how, Number value) {
  if (how == Merge::kSum && !__any_sync(0xFFFFFFFFu, value != 0)) return 0;
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    value = merged(how, value, __shfl_xor_sync(0xFFFFFFFFu, value, step));
  return value;
}

/// What the threads of a warp have found, in its first lane.
template <typename Kind>
__device__ void merge_threads(const Kind& p, OfBlock<Kind>& found) {
  auto* const counts = reinterpret_cast<unsigned*>(&found);
  auto* const reals = reinterpret_cast<double*>(&found + 1) - OfLaunch<Kind>::kReals;
#pragma unroll
  for (int i = 0; i < OfLaunch<Kind>::kCounts; ++i) counts[i] = merge_warp(Merge::kSum, counts[i]);
#pragma unroll
  for (int i = 0; i < OfLaunch<Kind>::kReals; ++i)
    if (p.is_used(i)) reals[i] = merge_warp(OfLaunch<Kind>::merge_of(i), reals[i]);
}

/// A word of a part: half of a number, and the launch's generation.
__device__ void store_half(U64* word, unsigned generation, unsigned half) {
  // Volatile is relaxed in PTX: another launch may be at it, and such a word is never torn.
  *reinterpret_cast<volatile U64*>(word) = static_cast<U64>(generation) << 32 | half;
}

/// What the warps of a block have found, of one number.
template <typename Kind>
__device__ unsigned merge_counts(const OfBlock<Kind>* warps, int i) {
  unsigned count = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    count += reinterpret_cast<const unsigned*>(&warps[warp])[i];
  return count;
}

template <typename Kind>
__device__ double merge_reals(const OfBlock<Kind>* warps, int i) {
  const auto of_warp = [&](int warp) {
    return (reinterpret_cast<const double*>(&warps[warp + 1]) - OfLaunch<Kind>::kReals)[i];
  };
  double number = of_warp(0);
  for (int warp = 1; warp < kWarps; ++warp)
    number = merged(OfLaunch<Kind>::merge_of(i), number, of_warp(warp));
  return number;
}

/// Merges what the warps have found, and writes it as the block's part, by the threads of one warp.
template <typename Kind>
__device__ void store_part(const Kind& p, const OfBlock<Kind>* warps, Slot& slot) {
  const unsigned generation = p.launch.generation;
  const int lane = threadIdx.x;
  const int real = lane - OfLaunch<Kind>::kCounts;
  if (lane < OfLaunch<Kind>::kCounts) {
    store_half(&slot.parts[lane][blockIdx.x], generation, merge_counts<Kind>(warps, lane));
  } else if (real < OfLaunch<Kind>::kReals && p.is_used(real)) {
    const auto bits = static_cast<U64>(__double_as_longlong(merge_reals<Kind>(warps, real)));
    U64(*const words)[kMaxBlocks] = &slot.parts[OfLaunch<Kind>::kCounts + 2 * real];
    store_half(&words[0][blockIdx.x], generation, static_cast<unsigned>(bits >> 32));
    store_half(&words[1][blockIdx.x], generation, static_cast<unsigned>(bits));
  }
}

/// The same where there is only one block: nobody else has to know.
template <typename Kind>
__device__ void merge_only_block(const Kind& p, const OfBlock<Kind>* warps, OfLaunch<Kind>& found) {
  auto* const counts = reinterpret_cast<U64*>(&found);
  auto* const reals = reinterpret_cast<double*>(counts + OfLaunch<Kind>::kCounts);
  const int lane = threadIdx.x;
  const int real = lane - OfLaunch<Kind>::kCounts;
  if (lane < OfLaunch<Kind>::kCounts)
    counts[lane] = merge_counts<Kind>(warps, lane);
  else if (real < OfLaunch<Kind>::kReals)
    reals[real] = p.is_used(real) ? merge_reals<Kind>(warps, real) : 0;
}

/// One number of all blocks' parts merged, of which each thread of a warp takes some; `kWords` is 1
/// for a count and 2 for a real. `own` becomes false where a part is another launch's.
template <int kWords, typename Number>
__device__ Number merge_parts(Merge how, Number neutral, const Slot& slot, int word,
                              unsigned generation, bool& own) {
  constexpr int kAtOnce = 6;  // loads that are under way together
  Number number = neutral;
  for (unsigned first = threadIdx.x % 32; first < gridDim.x; first += 32 * kAtOnce) {
    U64 loaded[kWords][kAtOnce] = {};
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
        number = merged(how, number, loaded[0][k] & 0xFFFFFFFFu);
      } else {
        number = merged(how, number,
                        __longlong_as_double(
                            static_cast<I64>(loaded[0][k] << 32 | (loaded[1][k] & 0xFFFFFFFFu))));
      }
    }
  }
  return merge_warp(how, number);
}

/// What all blocks have found, by the threads of the last one. False where parts were overwritten.
template <typename Kind>
__device__ bool merge_blocks(const Kind& p, const Slot& slot, OfLaunch<Kind>& found) {
  auto* const counts = reinterpret_cast<U64*>(&found);
  auto* const reals = reinterpret_cast<double*>(counts + OfLaunch<Kind>::kCounts);
  const unsigned generation = p.launch.generation;
  const bool is_first = threadIdx.x % 32 == 0;
  const int warp = static_cast<int>(threadIdx.x / 32);
  bool own = true;
  int next = 0;  // the numbers that are used go around the warps
  for (int i = 0; i < OfLaunch<Kind>::kCounts; ++i) {
    if (next++ % kWarps != warp) continue;
    const U64 count = merge_parts<1, U64>(Merge::kSum, 0, slot, i, generation, own);
    if (is_first) counts[i] = count;
  }
  for (int i = 0; i < OfLaunch<Kind>::kReals; ++i) {
    double number = 0;
    if (p.is_used(i)) {
      if (next++ % kWarps != warp) continue;
      const Merge how = OfLaunch<Kind>::merge_of(i);
      number = merge_parts<2, double>(how, neutral_of(how), slot, OfLaunch<Kind>::kCounts + 2 * i,
                                      generation, own);
    } else if (warp != 0) {
      continue;
    }
    if (is_first) reals[i] = number;
  }
  return __syncthreads_and(own);
}

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

/// Publishes the state, by all threads of the block that has the lock.
__device__ void publish(const LaunchParameters& p) {
  __shared__ unsigned number, scalars;
  if (threadIdx.x == 0) {
    // A graph that was captured earlier knows of fewer.
    scalars = p.scratch->scalars > p.scalars ? p.scratch->scalars : p.scalars;
    p.scratch->scalars = scalars;
    number = static_cast<unsigned>(++p.scratch->sequence);
  }
  __syncthreads();  // of thread 0 also what it has folded
  publish_words(p, number, scalars, threadIdx.x, kThreads);
  __syncthreads();  // whoever has the lock next writes after this
}

/// What a launch's blocks add to its slot's progress: all of them together 0. Odd, so that no part
/// of them is.
__device__ U64 share_of(const LaunchParameters& p) {
  U64 share = p.generation * 0x9E3779B97F4A7C15ull;
  share = (share ^ share >> 32) * 0xD6E8FEB86659FD93ull;
  share = (share ^ share >> 32) | 1;
  return blockIdx.x == 0 ? share - share * gridDim.x : share;
}

/// Hands on what the warps have found. What follows the rows is the same for all kernels of a kind.
template <typename Kind>
__device__ __noinline__ void finish(const Kind& p, double shift) {
  const OfBlock<Kind>* const warps = shared<Kind>().warps;
  OfLaunch<Kind>& found = shared<Kind>().all;
  static_assert(sizeof(OfBlock<Kind>) ==
                (OfLaunch<Kind>::kCounts + 1) / 2 * 8 + OfLaunch<Kind>::kReals * 8);
  static_assert(sizeof(OfLaunch<Kind>) == (OfLaunch<Kind>::kCounts + OfLaunch<Kind>::kReals) * 8);
  static_assert(OfLaunch<Kind>::kCounts + 2 * OfLaunch<Kind>::kReals <= kPartWords);
  static_assert(OfLaunch<Kind>::kCounts + OfLaunch<Kind>::kReals <= 32);
  constexpr U64 kEntry = Kind::kIsUpdate ? 1 : 1ull << 32;
  Scratch& scratch = *p.launch.scratch;
  Slot& slot = scratch.slots[p.launch.slot];
  __syncthreads();  // what the warps have found is there
  bool is_whole = true;
  if (gridDim.x == 1) {  // it meets nobody in a slot, and is never lost
    if (threadIdx.x < 32) merge_only_block<Kind>(p, warps, found);
    __syncthreads();
  } else {
    bool is_last = false;
    if (threadIdx.x < 32) {
      store_part<Kind>(p, warps, slot);
      __syncwarp();
      if (threadIdx.x == 0) {
        if (blockIdx.x == 0) atomicAdd(&slot.launches, kEntry);
        const U64 share = share_of(p.launch);
        __threadfence();
        is_last = atomicAdd(&slot.progress, share) + share == 0;
        if (is_last) __threadfence();  // the barrier passes it on to the others
      }
    }
    if (!__syncthreads_or(is_last)) return;
    is_whole = merge_blocks<Kind>(p, slot, found);
  }
  if (threadIdx.x == 0) {
    lock(scratch.lock);
    if (gridDim.x != 1) {
      // Under the lock: where two launches met here, one finds both and the other none, and what it
      // finds missing is its own. In another order than that of the lock, `lost` would be one below
      // zero in between.
      const auto lost =
          static_cast<I64>(atomicExch(&slot.launches, 0ull) - (is_whole ? kEntry : 0));
      const I64 updates = static_cast<int>(lost);
      const I64 values = (lost - updates) / (I64{1} << 32);
      scratch.lost += static_cast<U64>(updates + values);
      p.launch.state->updates += static_cast<U64>(updates);
    }
    if (is_whole) p.fold(found, shift, *p.launch.state);
  }
  publish(p.launch);
  if (threadIdx.x == 0) unlock(scratch.lock);
}

}  // namespace
}  // namespace pig::metrics
