// SPDX-License-Identifier: Apache-2.0
//
// Locks, signals and ends of threads, where the standard library has no such thing.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <new>

namespace pig {

/// A lock for sections of microseconds that do no I/O and take no lock under which much is done. It
/// gives the processor away while it waits.
class SpinLock {
 public:
  bool try_lock() { return !flag_.test_and_set(std::memory_order_acquire); }
  void lock() {
    while (!try_lock()) sched_yield();
  }
  void unlock() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_ = ATOMIC_FLAG_INIT;
};

/// While it lives, the calling thread takes no signals, and threads that it starts never will:
/// signals go to the program's own threads.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// Has a function called with a value as a thread ends. A thread_local object with a destructor
/// does the same, but to note the destructor takes memory, and where there is none the C library
/// ends the process. Lives forever.
class ThreadEnd {
 public:
  explicit ThreadEnd(void (*function)(void*)) noexcept
      : is_made_(pthread_key_create(&key_, function) == 0) {}

  /// For the calling thread; null takes it back. False where it can't be noted.
  bool set(void* value) const noexcept { return is_made_ && pthread_setspecific(key_, value) == 0; }

 private:
  pthread_key_t key_{};
  const bool is_made_;
};

/// What the calling thread has of its own, which is made when it first asks: `own` is thread-local,
/// and `end` deletes what it is given. Null where there is no memory for it.
///
/// Not the object itself is thread-local: the room for such variables that libraries share which
/// Python loads later is small, and another library's would not fit any more.
template <typename Own>
Own* own_of_thread(Own*& own, const ThreadEnd& end) noexcept {
  if (own == nullptr) {
    auto made = std::unique_ptr<Own>(new (std::nothrow) Own);
    if (made == nullptr || !end.set(made.get())) return nullptr;
    own = made.release();
  }
  return own;
}

}  // namespace pig
