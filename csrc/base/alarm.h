// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

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

}  // namespace pig
