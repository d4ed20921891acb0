// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <system_error>
#include <utility>

#include "base/signals_blocked.h"

namespace pig {

/// What a harvest may have to tell.
enum class Notice {
  kHistoryStopped,  ///< once per recording: the file can no longer be written
  kDeviceWarnings,  ///< DeviceTiming has something to say
  kDeviceProbe,     ///< device times are wanted and the driver is loaded, but PyTorch has not yet
                    ///< been seen to initialise CUDA
};

/// The native thread that calls `tick` every 20 ms, or sooner when woken. It holds no GIL and takes
/// no signals.
class Harvester {
 public:
  /// Throws std::system_error when there is no thread to be had.
  void start(std::function<void()> tick) {
    tick_ = std::move(tick);
    stop_requested_ = false;
    const SignalsBlocked blocked;
    const int error = pthread_create(&thread_, nullptr, run, this);
    if (error != 0)
      throw std::system_error(error, std::generic_category(), "starting the harvester thread");
    pthread_setname_np(thread_, "pig-harvester");
    running_ = true;
  }

  void stop() {
    if (!running_) return;
    {
      const std::lock_guard lock(mutex_);
      stop_requested_ = true;
    }
    condition_.notify_one();
    pthread_join(thread_, nullptr);
    running_ = false;
  }

  /// From any thread. A wake-up that comes too early for the waiting thread is lost: the next tick
  /// is near.
  void wake() { condition_.notify_one(); }

 private:
  static constexpr std::chrono::milliseconds kTick{20};

  static void* run(void* harvester) {
    auto& self = *static_cast<Harvester*>(harvester);
    std::unique_lock lock(self.mutex_);
    while (!self.stop_requested_) {
      self.condition_.wait_for(lock, kTick);
      lock.unlock();
      self.tick_();
      lock.lock();
    }
    return nullptr;
  }

  std::function<void()> tick_;
  pthread_t thread_{};
  bool running_ = false;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_requested_ = false;
};

}  // namespace pig
