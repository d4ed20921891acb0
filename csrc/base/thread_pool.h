// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

namespace pig {

/// Threads that help with work on the CPU and wait for more of it. They take no signals and know
/// nothing of Python. They are started when first needed and live as long as the process, which may
/// end at any time while they wait. A forked child has threads of its own.
///
/// Any number of threads may call `run` at once. None waits for another one's work: who finds all
/// helpers busy does it alone.
class ThreadPool {
 public:
  static constexpr int kMaxThreads = 16;

  static ThreadPool& instance();

  /// Calls `work` on this thread and on up to `threads - 1` others, at once. Returns when all calls
  /// have. `work` must not throw.
  void run(int threads, const std::function<void()>& work);

 private:
  /// Lies on the stack of the thread that waits for it.
  struct Job {
    const std::function<void()>& work;
    int running = 0;  ///< helpers that have begun and not ended
    std::condition_variable done;
  };

  ThreadPool() = default;
  void start_threads(int count);
  void help();

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<Job*> jobs_;  ///< as often as helpers are wanted
  int threads_ = 0;
};

}  // namespace pig
