// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/drops.h"
#include "base/throwing.h"
#include "hot/thread_state.h"

namespace pig {

/// How to ask for the calling thread's name, when it first records.
void set_thread_name_function(std::string (*function)());

/// Counts what the active recording could not keep. False where none is active.
bool count_drop(Drop cause);

/// What a function returns that may allocate. Where there is no memory for it, that is counted, and
/// the result is `otherwise`.
template <typename Result, typename Function>
Result with_memory(Result otherwise, Function function) {
  Result result = otherwise;
  if (!try_allocating([&] { result = function(); })) count_drop(Drop::kNoMemory);
  return result;
}

/// The slow way of `recording_thread`: the calling thread's first record in this recording, or
/// something to catch up with.
ThreadState* attach_thread(uint32_t epoch) noexcept;

/// The calling thread's state for the active recording, or nullptr when there is no memory for one.
/// Needs the GIL.
inline ThreadState* recording_thread(uint32_t epoch) noexcept {
  ThreadState* thread = this_thread;
  if (PIG_LIKELY(thread->epoch() == epoch)) return thread;
  return attach_thread(epoch);
}

}  // namespace pig
