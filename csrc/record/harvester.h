// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/threads.h"

namespace pig {

/// Wakes a thread that sleeps until it is rung or some time is over.
///
/// Not a condition variable: one that times out makes a second system call for the mutex, and goes
/// through much code that a thread which wakes a few times a second never finds in a cache.
class Alarm {
 public:
  /// How often it was rung. Read under the lock that guards the reason to sleep.
  uint32_t rings() const { return rings_.load(std::memory_order_relaxed); }

  /// Sleeps, unless it was rung since `rings` was read.
  void sleep(uint32_t rings, std::chrono::nanoseconds time) {
    const timespec relative{static_cast<time_t>(time.count() / 1'000'000'000),
                            static_cast<long>(time.count() % 1'000'000'000)};
    syscall(SYS_futex, &rings_, FUTEX_WAIT_PRIVATE, rings, &relative, nullptr, 0);
  }

  void ring() {
    rings_.fetch_add(1, std::memory_order_relaxed);
    syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

 private:
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
  std::atomic<uint32_t> rings_{0};
};

/// The native thread that harvests every 95 ms, or sooner when woken or asked. It holds no GIL and
/// takes no signals. It alone asks the driver for answers, and the driver may not return for as
/// long as a stream hangs: so nobody waits for this thread without a limit, and where it is not
/// back in time the recording ends without it.
class Harvester {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  /// A file is at most 100 ms behind its process.
  static constexpr std::chrono::milliseconds kTick{95};

  /// `turn` is called again and again, with whether somebody waits for it, `last` once at the end,
  /// unless the thread is given up. Then one of them is still running while the next recording
  /// begins: they have to see to it that this does no harm. Throws std::system_error when there is
  /// no thread that can be started.
  void start(std::function<void(bool asked)> turn, std::function<void()> last) {
    const std::lock_guard lock(mutex_);
    stop_requested_ = false;
    auto life = std::make_unique<Life>(Life{this, ++number_, std::move(turn), std::move(last)});
    const SignalsBlocked blocked;
    const int error = pthread_create(&thread_, nullptr, run, life.get());
    if (error != 0)
      throw std::system_error(error, std::generic_category(), "starting the harvester thread");
    pthread_setname_np(thread_, "pig-harvester");
    life.release();  // NOLINT: the thread has it
    running_ = true;
  }

  /// Has the thread take its last turn and end. Returns whether it has; where it is blocked at the
  /// deadline or later, it is given up.
  template <typename IsBlocked>
  bool stop(Deadline deadline, IsBlocked is_blocked) {
    constexpr std::chrono::milliseconds kPoll{50};
    std::unique_lock lock(mutex_);
    if (!running_) return true;
    running_ = false;
    stop_requested_ = true;
    alarm_.ring();
    const uint64_t number = number_;
    bool ended = false;
    while (!(ended = turned_.wait_until(lock, deadline, [&] { return ended_ == number; })) &&
           !is_blocked())
      deadline += kPoll;
    if (!ended) ++number_;
    lock.unlock();
    if (ended) {
      pthread_join(thread_, nullptr);
    } else {
      pthread_detach(thread_);
    }
    return ended;
  }

  /// From any thread. A wake-up during a turn is lost: the next one is near.
  void wake() { alarm_.ring(); }

  /// Asks for a turn that begins after this and waits for its end. False where that takes longer.
  bool wait_for_turn(Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!running_) return false;
    const uint64_t wanted = ++turns_wanted_;
    alarm_.ring();
    turned_.wait_until(lock, deadline, [&] { return turns_made_ >= wanted || !running_; });
    return turns_made_ >= wanted;
  }

 private:
  /// What one thread has.
  struct Life {
    Harvester* harvester;
    uint64_t number;
    std::function<void(bool)> turn;
    std::function<void()> last;
  };

  static void* run(void* life) {
    const std::unique_ptr<Life> own(static_cast<Life*>(life));
    own->harvester->live(*own);
    return nullptr;
  }

  void live(const Life& life) {
    std::unique_lock lock(mutex_);
    while (number_ == life.number && !stop_requested_) {
      if (turns_made_ >= turns_wanted_) {
        const uint32_t rings = alarm_.rings();
        lock.unlock();
        alarm_.sleep(rings, kTick);
        lock.lock();
      }
      const uint64_t wanted = turns_wanted_;
      const bool asked = wanted > turns_made_;
      lock.unlock();
      life.turn(asked);
      lock.lock();
      if (number_ != life.number) return;
      turns_made_ = wanted;
      if (asked) turned_.notify_all();
    }
    if (number_ != life.number) return;
    lock.unlock();
    life.last();
    lock.lock();
    if (number_ != life.number) return;
    ended_ = life.number;
    turned_.notify_all();
  }

  pthread_t thread_{};
  std::mutex mutex_;
  Alarm alarm_;                     ///< there is something to do
  std::condition_variable turned_;  ///< it is done
  bool running_ = false;
  bool stop_requested_ = false;
  uint64_t number_ = 0;  ///< of the thread; those with another one were given up
  uint64_t ended_ = 0;   ///< the last thread that ended by itself
  uint64_t turns_wanted_ = 0;
  uint64_t turns_made_ = 0;
};

}  // namespace pig
