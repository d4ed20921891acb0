// SPDX-License-Identifier: Apache-2.0
#include "base/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <system_error>
#include <thread>

#include "base/signals_blocked.h"
#include "base/throwing.h"

namespace pig {
namespace {

std::atomic<ThreadPool*> pool{nullptr};

}  // namespace

ThreadPool& ThreadPool::instance() {
  ThreadPool* known = pool.load(std::memory_order_acquire);
  if (known != nullptr) return *known;
  // A forked child has none of the threads, and a lock may be held forever: it begins anew.
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { pool.store(nullptr, std::memory_order_relaxed); });
  (void)registered;
  // Never destroyed: its threads use it until the process is gone.
  auto* const made = new ThreadPool;
  if (pool.compare_exchange_strong(known, made)) return *made;
  delete made;
  return *known;
}

void ThreadPool::run(int threads, const std::function<void()>& work) {
  Job job{work, 0, {}};
  const int helpers = std::min(threads, kMaxThreads) - 1;
  {
    const std::lock_guard lock(mutex_);
    // Without memory this thread does more of it.
    try_allocating([&] {
      start_threads(helpers);
      jobs_.insert(jobs_.end(), static_cast<size_t>(std::min(helpers, threads_)), &job);
    });
  }
  for (int i = 0; i < helpers; ++i) wanted_.notify_one();
  work();
  std::unique_lock lock(mutex_);
  std::erase(jobs_, &job);
  job.done.wait(lock, [&] { return job.running == 0; });
}

void ThreadPool::start_threads(int count) {
  const SignalsBlocked blocked;
  try {
    for (; threads_ < count; ++threads_) std::thread([this] { help(); }).detach();
  } catch (const std::system_error&) {
  }
}

void ThreadPool::help() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wanted_.wait(lock, [this] { return !jobs_.empty(); });
    Job& job = *jobs_.front();
    jobs_.pop_front();
    ++job.running;
    lock.unlock();
    job.work();
    lock.lock();
    // Under the lock: once it is released, the job may be gone.
    if (--job.running == 0) job.done.notify_one();
  }
}

}  // namespace pig
