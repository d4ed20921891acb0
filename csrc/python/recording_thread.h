// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "hot/thread_state.h"

namespace pig {

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
