// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ticks.h"
#include "cuda/driver.h"

namespace pig::cuda {

/// A stream, as recording threads use it.
class StreamUse {
 public:
  /// A thread marks a place on the stream during a step.
  void use(uint32_t thread, uint32_t step) {
    const uint64_t now = static_cast<uint64_t>(step) << 32 | thread;
    const uint64_t last = last_use_.load(std::memory_order_relaxed);
    if (PIG_LIKELY(last == now)) return;
    if (last != kNever && static_cast<uint32_t>(last >> 32) == step)
      shared_step_.store(step, std::memory_order_relaxed);
    last_use_.store(now, std::memory_order_relaxed);
  }
  /// Whether two threads have used it in the step.
  bool shared_in(uint32_t step) const {
    return shared_step_.load(std::memory_order_relaxed) == (uint64_t{step});
  }
  /// A thread has found it in a capture.
  void captured() { capturing_.store(true, std::memory_order_relaxed); }
  /// That capture is over.
  void released() { capturing_.store(false, std::memory_order_relaxed); }
  bool capturing() const { return capturing_.load(std::memory_order_relaxed); }
  void reset() {
    released();
    last_use_.store(kNever, std::memory_order_relaxed);
    shared_step_.store(kNever, std::memory_order_relaxed);
  }

  Stream handle = nullptr;
  uint32_t thread = 0;  ///< of the per-thread default stream, which is another one in each thread
  uint32_t index = 0;

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};
  std::atomic<uint64_t> last_use_{kNever};  ///< step << 32 | thread
  std::atomic<uint64_t> shared_step_{kNever};
  std::atomic<bool> capturing_{false};
};

}  // namespace pig::cuda
