// SPDX-License-Identifier: Apache-2.0
//
// A thread that asks one device, so that one whose driver does not return keeps nobody from asking
// the others. It is made at the first request, takes no signals, and is never ended: it may be
// inside the driver until the process ends.
#pragma once

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <utility>

#include "base/threads.h"
#include "base/throwing.h"

namespace pig::cuda {

class DeviceAsker {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// Has the thread call `ask`, unless it is still at the last one, or can't be started: false.
  bool request(std::function<void()> ask) {
    const std::lock_guard lock(mutex_);
    if (ask_ || (!is_started_ && !start())) return false;
    ask_ = std::move(ask);
    changed_.notify_all();
    return true;
  }

  /// Whether it is not back from the last request.
  bool is_away() const {
    const std::lock_guard lock(mutex_);
    return static_cast<bool>(ask_);
  }

  /// Until it is back, or the deadline has come. Returns whether it is back.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return changed_.wait_until(lock, deadline, [this] { return !ask_; });
  }

 private:
  bool start() {
    const SignalsBlocked blocked;
    pthread_t thread{};
    is_started_ = pthread_create(&thread, nullptr, run, this) == 0;
    if (!is_started_) return false;
    pthread_setname_np(thread, "pig-asker");
    pthread_detach(thread);
    return true;
  }

  static void* run(void* asker) {
    static_cast<DeviceAsker*>(asker)->live();
    return nullptr;
  }

  [[noreturn]] void live() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return static_cast<bool>(ask_); });
      lock.unlock();
      try_allocating(ask_);
      lock.lock();
      ask_ = nullptr;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> ask_;  ///< empty: it has nothing to do
  bool is_started_ = false;
};

}  // namespace pig::cuda
