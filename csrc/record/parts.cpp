// SPDX-License-Identifier: Apache-2.0
#include "record/parts.h"

#include <utility>

#include "record/recording_thread.h"

namespace pig {
namespace {

constinit Parts* current_parts = nullptr;
std::string (*thread_name)() = nullptr;

}  // namespace

Parts& parts() { return *current_parts; }

std::vector<Part*> make_parts() {
  // Leaked: threads that end after static destruction still find them.
  Parts& p = *(current_parts = new Parts);
  // Spans come first, with the paths and threads that all others refer to, and values before steps:
  // the step of a value has an index once all that were dropped before it are known.
  return {&p.spans,   &p.device_times, &p.graph_phases, &p.host_use, &p.gil_watch,
          &p.metrics, &p.causes,       &p.all_steps,    &p.syncs,    &p.collectives,
          &p.stalls,  &p.documents,    &p.reminders};
}

void Parts::begin_scratch() {
  scratch_ = std::make_unique<Scratch>();
  Recorder& recorder = Recorder::instance();
  scratch_->steps.reset({recorder.clock(), scratch_->drops, {}});
  scratch_->state.reset({&scratch_->paths, &scratch_->drops, nullptr, wake_harvester},
                        active_epoch.load(std::memory_order_relaxed), kMaxThreads - 1);
  set_aside_ = std::exchange(this_thread, &scratch_->state);
}

void Parts::end_scratch() {
  this_thread = set_aside_;
  scratch_.reset();
}

void set_thread_name_function(std::string (*function)()) { thread_name = function; }

ThreadState* attach_thread(uint32_t epoch) noexcept {
  // First what needs no name: the thread may only have to catch up.
  if (this_thread->catch_up(epoch)) return this_thread;
  return with_memory<ThreadState*>(nullptr, [epoch] {
    std::string name = thread_name != nullptr ? thread_name() : std::string();
    // Asking for the name ran Python code, which may itself have entered a phase.
    if (this_thread->epoch() == epoch) return this_thread;
    return parts().spans.attach(epoch, std::move(name));
  });
}

bool count_drop(Drop cause) {
  if (active_epoch.load(std::memory_order_relaxed) == 0) return false;
  Recorder::instance().drops().add(cause);
  return true;
}

}  // namespace pig
