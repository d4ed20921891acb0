// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace pig {

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

}  // namespace pig
