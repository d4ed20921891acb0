// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <new>
#include <vector>

#include "base/ticks.h"

namespace pig {

/// Whether there is so much memory at this moment.
bool has_memory(size_t bytes) noexcept;

extern constinit thread_local bool is_prepared_to_throw;
bool prepare_to_throw() noexcept;

/// Whether the calling thread can throw an exception and live.
///
/// What is known of a thread's exceptions lies in thread-local memory of the C++ library. The
/// dynamic linker allocates that memory when the thread first throws, and ends the process if there
/// is none. So whatever may throw is only done on a thread that has it. That includes `new` with
/// `std::nothrow`, in which the library throws and catches.
inline bool may_throw() noexcept { return PIG_LIKELY(is_prepared_to_throw) || prepare_to_throw(); }

/// Runs what may allocate. False where there was no memory for it. Whatever allocates on a thread
/// of the program goes through this, or through one of the guards above it that also count what is
/// lost (record/recording_thread.h, python/python_error.h).
template <typename Function>
bool try_allocating(Function function) {
  if (PIG_UNLIKELY(!may_throw())) return false;
  try {
    function();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

/// Sees to it that a vector can grow to so many elements without a throw. Throws std::bad_alloc.
template <typename Element>
void make_room(std::vector<Element>& vector, size_t elements) {
  if (vector.capacity() < elements) vector.reserve(2 * elements);
}

}  // namespace pig
