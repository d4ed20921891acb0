// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
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

/// Calls `work(part)` for the numbers below `parts`, each once, on up to so many threads.
template <typename Work>
void for_each_part(int64_t parts, int max_threads, Work work) {
  std::atomic<int64_t> next{0};
  const auto do_some = [&] {
    for (int64_t part; (part = next.fetch_add(1, std::memory_order_relaxed)) < parts;) work(part);
  };
  const auto threads = static_cast<int>(std::min<int64_t>(max_threads, parts));
  if (threads < 2) return do_some();
  ThreadPool::instance().run(threads, do_some);
}

}  // namespace pig
