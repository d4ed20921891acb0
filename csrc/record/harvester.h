// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

#include <condition_variable>
#include <functional>
#include <mutex>

namespace pig {

/// The native thread that calls `tick` every 20 ms, or sooner when woken. It holds no GIL and takes
/// no signals.
class Harvester {
 public:
  /// Throws std::system_error when there is no thread to be had.
  void start(std::function<void()> tick);
  void stop();
  /// From any thread. A wake-up that comes too early for the waiting thread is lost: the next tick
  /// is near.
  void wake() { condition_.notify_one(); }

 private:
  static void* run(void* self);
  void loop();

  std::function<void()> tick_;
  pthread_t thread_{};
  bool running_ = false;
  std::mutex mutex_;
  std::condition_variable condition_;
  bool stop_requested_ = false;
};

}  // namespace pig
