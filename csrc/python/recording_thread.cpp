// SPDX-License-Identifier: Apache-2.0
#include "python/recording_thread.h"

#include <new>
#include <string>
#include <utility>

#include "python/python_hooks.h"
#include "record/recorder.h"

namespace pig {

ThreadState* attach_thread(uint32_t epoch) noexcept {
  // First what needs no name: the thread may only have to catch up.
  if (this_thread->catch_up(epoch)) return this_thread;
  try {
    std::string name = current_thread_name();
    // Asking for the name ran Python code, which may itself have entered a phase.
    if (this_thread->epoch() == epoch) return this_thread;
    return Recorder::instance().attach(epoch, std::move(name));
  } catch (const std::bad_alloc&) {
    Recorder::instance().drops().add(Drop::kNoMemory);
    return nullptr;
  }
}

}  // namespace pig
