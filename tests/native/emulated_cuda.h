// SPDX-License-Identifier: Apache-2.0
//
// CUDA C++ on the CPU, as much of it as metric_kernel.cu uses: include this and then the kernel.
//
// Every thread of a block is a fiber, and all of them run on one thread of the host. So a run is
// repeatable, and the caller decides which block goes on wherever the order of blocks can matter:
// before every atomic operation, at fences, and when a thread waits for others. The blocks of
// several launches can run at once. Shared variables lie in a section of the program that is
// exchanged when another block goes on. GCC ignores sections in templates: they must not be there.
//
// A barrier that not all threads of a block reach, or that they reach in different places, ends
// the program, and so does a warp's collective function that its lanes don't call together.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "fiber.h"

namespace emulated {

struct Index {
  unsigned x;
};

inline Index thread_index, block_index, grid_size;

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "emulated CUDA: %s (block %u, thread %u)\n", what, block_index.x,
               thread_index.x);
  std::abort();
}

extern "C" {
extern char shared_begin[] __asm__("__start_emulated_shared") __attribute__((visibility("hidden")));
extern char shared_end[] __asm__("__stop_emulated_shared") __attribute__((visibility("hidden")));
}

constexpr unsigned kThreadsOfBlock = 256;
constexpr unsigned kLanes = 32;
constexpr unsigned kMaxValueBytes = 16;

/// Where the threads of a group wait for each other, and what each of them brings.
struct Meeting {
  unsigned members;
  unsigned arrived = 0;
  unsigned number = 0;  ///< of the meetings that are over
  int place = 0;        ///< the line of the source where the first one waits
  bool all = true;
  bool any = false;
};

enum class Stop { kWaits, kFence, kAtomic, kSpins, kDone };

class Block {
 public:
  Block(unsigned index, unsigned size_of_grid, std::function<void()> kernel)
      : index_(index),
        size_of_grid_(size_of_grid),
        kernel_(std::move(kernel)),
        shared_(static_cast<size_t>(shared_end - shared_begin), char(0xA5)),
        threads_(kThreadsOfBlock),
        warps_(kThreadsOfBlock / kLanes) {
    block_.members = kThreadsOfBlock;
    for (Warp& warp : warps_) warp.meeting.members = kLanes;
    for (Thread& thread : threads_) {
      thread.fiber = take_fiber();
      thread.fiber->start([] { current()->kernel_(); });
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block() {
    if (current() == this) current() = nullptr;
    for (Thread& thread : threads_) unused_fibers().push_back(std::move(thread.fiber));
  }

  /// Lets one thread go on until it waits for others, is about to do an atomic operation, is at a
  /// fence, or is done.
  Stop go_on() {
    if (Block* const before = std::exchange(current(), this); before != this) {
      if (before != nullptr) std::memcpy(before->shared_.data(), shared_begin, shared_.size());
      std::memcpy(shared_begin, shared_.data(), shared_.size());
    }
    block_index = {index_};
    grid_size = {size_of_grid_};
    Thread& thread = next_thread();
    stop_ = Stop::kDone;
    thread.fiber->resume();
    if (thread.fiber->is_done()) {
      ++done_;
      stop_ = Stop::kDone;
    }
    return stop_;
  }

  bool is_done() const { return done_ == kThreadsOfBlock; }

  // --- what threads call ---

  static Block*& current() {
    static Block* block = nullptr;
    return block;
  }

  void stop_at(Stop stop) {
    stop_ = stop;
    stays_ = true;  // the same thread goes on, for nobody waits
    Fiber::leave();
  }

  bool meet_block(int place, bool value) { return wait(block_, place, value).first; }

  bool meet_block_any(int place, bool value) { return wait(block_, place, value).second; }

  bool meet_warp_any(int place, bool value) { return wait(warp().meeting, place, value).second; }

  /// Until somebody waits for it, the destination has other bytes: who reads too early, or has
  /// something copied to where others still read, finds those.
  void begin_copy(void* to, const void* from, unsigned bytes, unsigned long long* barrier) {
    for (const void* each : {static_cast<const void*>(to), from})
      if (reinterpret_cast<size_t>(each) % 16 != 0) fail("a bulk copy is not aligned");
    if (bytes == 0 || bytes % 16 != 0) fail("a bulk copy is not of whole loads");
    if (!copies_.emplace(barrier, Copy{to, from, bytes}).second) fail("a barrier has two copies");
    std::memset(to, 0xA5, bytes);
  }

  void finish_copy(unsigned long long* barrier, unsigned parity) {
    auto found = copies_.find(barrier);
    for (int rounds = 0; *barrier % 2 == parity && found == copies_.end(); ++rounds) {
      if (rounds == 1000) fail("a thread waits for a copy that nobody begins");
      stop_ = Stop::kWaits;  // others go on, for one of them will begin it
      Fiber::leave();
      found = copies_.find(barrier);
    }
    if (*barrier % 2 != parity) return;  // another thread has waited for it
    std::memcpy(found->second.to, found->second.from, found->second.bytes);
    copies_.erase(found);
    ++*barrier;
  }

  template <typename Value>
  Value exchange(int place, Value value, unsigned other_lane) {
    static_assert(sizeof(Value) <= kMaxValueBytes);
    Warp& own = warp();
    // The next exchange may begin before all have read this one's values, the one after may not.
    auto& values = own.values[own.meeting.number % 2];
    std::memcpy(values[thread_index.x % kLanes], &value, sizeof value);
    wait(own.meeting, place, true);
    std::memcpy(&value, values[other_lane], sizeof value);
    return value;
  }

 private:
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    const Meeting* waits_at = nullptr;
    unsigned meeting = 0;
  };
  struct Copy {
    void* to;
    const void* from;
    unsigned bytes;
  };
  struct Warp {
    Meeting meeting;
    unsigned char values[2][kLanes][kMaxValueBytes];
  };

  static std::vector<std::unique_ptr<Fiber>>& unused_fibers() {
    static std::vector<std::unique_ptr<Fiber>> fibers;
    return fibers;
  }
  static std::unique_ptr<Fiber> take_fiber() {
    auto& unused = unused_fibers();
    if (unused.empty()) return std::make_unique<Fiber>();
    std::unique_ptr<Fiber> fiber = std::move(unused.back());
    unused.pop_back();
    return fiber;
  }

  Warp& warp() { return warps_[thread_index.x / kLanes]; }

  Thread& next_thread() {
    if (std::exchange(stays_, false)) {
      thread_index = {running_};
      return threads_[running_];
    }
    for (unsigned tried = 0; tried < kThreadsOfBlock; ++tried) {
      running_ = (running_ + 1) % kThreadsOfBlock;
      Thread& thread = threads_[running_];
      if (thread.fiber->is_done()) continue;
      if (thread.waits_at != nullptr && thread.waits_at->number == thread.meeting) continue;
      thread_index = {running_};
      return thread;
    }
    fail("some threads wait for others that are done, or wait elsewhere");
  }

  /// Whether the value of all, and of any, is true.
  std::pair<bool, bool> wait(Meeting& meeting, int place, bool value) {
    if (meeting.arrived == 0) meeting = {meeting.members, 0, meeting.number, place};
    if (meeting.place != place) fail("threads meet that wait in different places");
    meeting.all &= value;
    meeting.any |= value;
    const unsigned number = meeting.number;
    if (++meeting.arrived == meeting.members) {
      meeting.arrived = 0;
      ++meeting.number;
      results_[&meeting == &block_ ? 0 : 1 + thread_index.x / kLanes][number % 2] = {meeting.all,
                                                                                     meeting.any};
    } else {
      Thread& thread = threads_[thread_index.x];
      thread.waits_at = &meeting;
      thread.meeting = number;
      stop_ = Stop::kWaits;
      Fiber::leave();
      thread.waits_at = nullptr;
    }
    return results_[&meeting == &block_ ? 0 : 1 + thread_index.x / kLanes][number % 2];
  }

  unsigned index_, size_of_grid_;
  std::function<void()> kernel_;
  std::vector<char> shared_;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::map<const void*, Copy> copies_;  ///< by their barriers, which count those that are over
  Meeting block_;
  std::pair<bool, bool> results_[1 + kThreadsOfBlock / kLanes][2] = {};
  unsigned running_ = kThreadsOfBlock - 1;
  unsigned done_ = 0;
  bool stays_ = false;
  Stop stop_ = Stop::kDone;
};

/// Runs blocks to their ends. `choose` says which of them goes on: it gets those that can, the one
/// that has just gone on, or none if that is done, and why that one has stopped.
class Machine {
 public:
  using Choose = std::function<size_t(const std::vector<size_t>& able, Stop why)>;

  /// Adds the blocks of a launch, and returns the number of the first.
  size_t launch(unsigned blocks, const std::function<void()>& kernel) {
    for (unsigned i = 0; i < blocks; ++i)
      blocks_.push_back(std::make_unique<Block>(i, blocks, kernel));
    return blocks_.size() - blocks;
  }

  void run(const Choose& choose) {
    std::vector<bool> spins(blocks_.size());
    std::vector<size_t> able;
    const auto find_able = [&] {
      able.clear();
      for (size_t i = 0; i < blocks_.size(); ++i)
        if (!blocks_[i]->is_done() && !spins[i]) able.push_back(i);
    };
    find_able();
    for (Stop why = Stop::kDone; !able.empty();) {
      const size_t chosen = choose(able, why);
      why = blocks_[chosen]->go_on();
      if (why == Stop::kWaits || (why == Stop::kDone && !blocks_[chosen]->is_done())) continue;
      // Who has found a lock taken goes on once another block has.
      spins.assign(spins.size(), false);
      if (why == Stop::kSpins) spins[chosen] = true;
      find_able();
    }
    for (const auto& block : blocks_)
      if (!block->is_done()) fail("all blocks wait for a lock");
    blocks_.clear();
  }

  /// One after the other.
  void run() {
    run([](const std::vector<size_t>& able, Stop) { return able.front(); });
  }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
};

inline void stop_at(Stop stop) { Block::current()->stop_at(stop); }

template <typename Value>
Value atomic_add(Value* at, Value value) {
  stop_at(Stop::kAtomic);
  const Value before = *at;
  *at = before + value;
  return before;
}

template <typename Value>
Value atomic_exchange(Value* at, Value value) {
  stop_at(Stop::kAtomic);
  return std::exchange(*at, value);
}

template <typename Value>
Value atomic_compare_and_swap(Value* at, Value expected, Value value) {
  stop_at(Stop::kAtomic);
  const Value before = *at;
  if (before == expected) {
    *at = value;
  } else {
    stop_at(Stop::kSpins);
  }
  return before;
}

inline long long bits_of(double value) {
  long long bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline double double_of(long long bits) {
  double value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline int bits_of(float value) {
  int bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace emulated

#define __device__
#define __global__
#define __noinline__
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ __attribute__((section("emulated_shared"))) static

#define threadIdx ::emulated::thread_index
#define blockIdx ::emulated::block_index
#define gridDim ::emulated::grid_size

#define __syncthreads() (void)::emulated::Block::current()->meet_block(__LINE__, true)
#define __syncthreads_and(value) ::emulated::Block::current()->meet_block(__LINE__, value)
#define __syncthreads_or(value) ::emulated::Block::current()->meet_block_any(__LINE__, value)
#define __syncwarp() (void)::emulated::Block::current()->meet_warp_any(__LINE__, true)
#define __any_sync(mask, value) ::emulated::Block::current()->meet_warp_any(__LINE__, value)
#define __shfl_sync(mask, value, lane) \
  ::emulated::Block::current()->exchange(__LINE__, value, unsigned(lane))
#define __shfl_xor_sync(mask, value, step)                \
  ::emulated::Block::current()->exchange(__LINE__, value, \
                                         (::emulated::thread_index.x % 32) ^ unsigned(step))

#define atomicAdd ::emulated::atomic_add
#define atomicExch ::emulated::atomic_exchange
#define atomicCAS ::emulated::atomic_compare_and_swap
#define __threadfence() ::emulated::stop_at(::emulated::Stop::kFence)

#define __double_as_longlong ::emulated::bits_of
#define __longlong_as_double ::emulated::double_of
#define __float_as_int ::emulated::bits_of
#define __int_as_float ::emulated::float_of
