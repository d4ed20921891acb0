// SPDX-License-Identifier: Apache-2.0
//
// Logits on their way to a warp: a ring of stages in shared memory, into which the device copies on
// its own, also from the end of one row to the beginning of the next. So memory has work while a
// block merges what it has found in a row. A warp has its own ring and waits for no other.
//
// From compute capability 9.0 on a stage is one bulk copy, whose end a barrier in shared memory
// tells; with 8.0 each lane copies what it will take. Multiprocessors with 100 KB of shared memory
// and less (7.5, 8.6, 8.9, 12.0) have no room for the rings of all blocks that run at once, and
// their memory is full with less under way: there each lane loads to registers.
#pragma once

#include "metrics/kernel_finish.cuh"

#if !defined(__CUDACC__) || (defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && \
                             __CUDA_ARCH__ < 1200 && __CUDACC_VER_MAJOR__ >= 12)
#define PIG_RING_BULK 1
#elif defined(__CUDA_ARCH__) && \
    (__CUDA_ARCH__ == 800 || (__CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200))
#define PIG_RING_BY_LANES 1
#endif

namespace pig::metrics {
namespace {

#if defined(PIG_RING_BULK) || defined(PIG_RING_BY_LANES)
constexpr bool kHasRing = true;
#else
constexpr bool kHasRing = false;
#endif

struct alignas(16) Load {
  unsigned words[4];
};

constexpr int kRingStages = 2;
/// Of a stage: each lane takes four.
constexpr int kStageLoads = 4 * 32;

struct RingMemory {
  Load stages[kWarps][kRingStages][kStageLoads];
  U64 barriers[kWarps][kRingStages];
};

// Not in a template: the emulator of the tests would not find it there.
__device__ RingMemory& ring_memory() {
  __shared__ RingMemory memory;
  return memory;
}

/// The part of a row that lies in whole loads of 16 bytes. Ranks are ints, so a row's logits are
/// less than 2^31.
struct RowLoads {
  const Load* at = nullptr;
  int count = 0;
  int head = 0;  ///< logits before it

  /// The warps take stages in turns.
  __device__ static int first_of(int stage) {
    return (stage * kWarps + static_cast<int>(threadIdx.x / 32)) * kStageLoads;
  }
  /// How many loads this warp's stage of that number has; none below 1.
  __device__ int in(int stage) const {
    const int left = count - first_of(stage);
    return left < kStageLoads ? left : kStageLoads;
  }
};

/// Of a warp: all lanes call its functions together.
class Ring {
 public:
  __device__ Ring() {
#if defined(PIG_RING_BULK)
    if (threadIdx.x % 32 == 0)
      for (int i = 0; i < kRingStages; ++i) init_barrier(&own_barriers()[i]);
    __syncwarp();
#endif
  }

  /// Begins to copy a row, where that has not begun yet and all before it was taken.
  __device__ void begin(const RowLoads& row) {
    while (ahead_ < kRingStages && row.in(ahead_) > 0) copy(row, ahead_);
  }

  /// What the next stage is, once it has arrived.
  __device__ const Load* wait() {
    const unsigned place = taken_ % kRingStages;
#if defined(PIG_RING_BULK)
    wait_for_barrier(&own_barriers()[place], taken_ / kRingStages % 2);
#elif defined(PIG_RING_BY_LANES)
    if (ahead_ == kRingStages)
      asm volatile("cp.async.wait_group %0;" ::"n"(kRingStages - 1) : "memory");
    else
      asm volatile("cp.async.wait_group 0;" ::: "memory");
#endif
    return own_stages()[place];
  }

  /// After all lanes have read it: the stage that begins to be copied in its place is that row's.
  __device__ void release(const RowLoads& row, int stage) {
    __syncwarp();
    ++taken_;
    --ahead_;
    if (row.in(stage) > 0) copy(row, stage);
  }

  /// Leaves out what has begun of a row.
  __device__ void drain() {
    while (ahead_ > 0) {
      wait();
      release({}, 0);
    }
  }

 private:
  __device__ void copy(const RowLoads& row, int stage) {
    const int loads = row.in(stage);
    const unsigned place = (taken_ + static_cast<unsigned>(ahead_++)) % kRingStages;
    Load* const to = own_stages()[place];
    const Load* const from = row.at + RowLoads::first_of(stage);
#if defined(PIG_RING_BY_LANES)
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x % 32); i < kStageLoads; i += 32)
      if (i < loads)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + i)),
                     "l"(from + i)
                     : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
#elif defined(PIG_RING_BULK)
    if (threadIdx.x % 32 == 0)
      copy_bulk(to, from, loads * static_cast<unsigned>(sizeof(Load)), &own_barriers()[place]);
#endif
  }

  using Stage = Load[kStageLoads];

  __device__ static Stage* own_stages() { return ring_memory().stages[threadIdx.x / 32]; }
  __device__ static U64* own_barriers() { return ring_memory().barriers[threadIdx.x / 32]; }

#if !defined(__CUDACC__)
  static void init_barrier(U64* barrier) { *barrier = 0; }
  static void copy_bulk(void* to, const void* from, unsigned bytes, U64* barrier) {
    emulated::Block::current()->begin_copy(to, from, bytes, barrier);
  }
  static void wait_for_barrier(U64* barrier, unsigned parity) {
    emulated::Block::current()->finish_copy(barrier, parity);
  }
#elif defined(__CUDA_ARCH__)
  __device__ static unsigned shared_address(const void* at) {
    return static_cast<unsigned>(__cvta_generic_to_shared(at));
  }
#endif
#if defined(__CUDACC__) && defined(PIG_RING_BULK)
  __device__ static void init_barrier(U64* barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier))
                 : "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  __device__ static void copy_bulk(void* to, const void* from, unsigned bytes, U64* barrier) {
    const unsigned at = shared_address(barrier);
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(at)
        : "memory");
  }
  __device__ static void wait_for_barrier(U64* barrier, unsigned parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE;\n"
        "bra WAIT;\n"
        "DONE:\n"
        "}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
  }
#endif

  unsigned taken_ = 0;  ///< stages of all rows
  int ahead_ = 0;       ///< that are under way, or have arrived
};

}  // namespace
}  // namespace pig::metrics
