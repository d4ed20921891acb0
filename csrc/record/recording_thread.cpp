// SPDX-License-Identifier: Apache-2.0
#include "record/recording_thread.h"

#include <string>
#include <utility>

#include "record/memory_guard.h"
#include "record/recorder.h"

namespace pig {
namespace {

std::string (*thread_name)() = nullptr;

}  // namespace

void set_thread_name_function(std::string (*function)()) { thread_name = function; }

ThreadState* attach_thread(uint32_t epoch) noexcept {
  // First what needs no name: the thread may only have to catch up.
  if (this_thread->catch_up(epoch)) return this_thread;
  return with_memory<ThreadState*>(nullptr, [epoch] {
    std::string name = thread_name != nullptr ? thread_name() : std::string();
    // Asking for the name ran Python code, which may itself have entered a phase.
    if (this_thread->epoch() == epoch) return this_thread;
    return Recorder::instance().attach(epoch, std::move(name));
  });
}

bool count_drop(Drop cause) {
  if (active_epoch.load(std::memory_order_relaxed) == 0) return false;
  Recorder::instance().drops().add(cause);
  return true;
}

}  // namespace pig
