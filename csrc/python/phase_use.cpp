// SPDX-License-Identifier: Apache-2.0
#include "python/phase_use.h"

#include <new>

#include "record/parts.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

/// Returns the frame's serial, or 0 when the frame could not be opened.
template <Use use>
uint32_t begin_frame(ThreadState& thread, uint32_t phase) noexcept {
  const Caller caller = caller_here<use>();
  try {
    return thread.begin(phase, caller);
  } catch (const std::bad_alloc&) {  // on a thread that may throw, as it has a state
    count_drop(Drop::kNoMemory);
    thread.skip_frame(phase, caller);
    return 0;
  }
}

/// Not the phase that is expected. A generator that another thread has begun left its phase there.
[[gnu::noinline]] void end_elsewhere(ThreadState& thread, uint32_t phase, Caller caller,
                                     uint64_t now) noexcept {
  Recorder& recorder = Recorder::instance();
  if (!caller.is_call() && is_in_generator() &&
      parts().spans.threads().request_end(thread, phase, caller.block, now))
    return;
  if (!thread.end_any(phase, caller, now)) recorder.drops().add(Drop::kUnmatchedEnds);
}

}  // namespace

template <Use use>
void record_begin(uint32_t epoch, uint32_t phase) noexcept {
  if (ThreadState* thread = recording_thread(epoch)) begin_frame<use>(*thread, phase);
}
template void record_begin<Use::kBlock>(uint32_t, uint32_t) noexcept;
template void record_begin<Use::kCall>(uint32_t, uint32_t) noexcept;

template <Use use>
void record_end(uint32_t epoch, uint32_t phase) noexcept {
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr) return;
  const uint64_t now = read_ticks();
  const Caller caller = caller_here<use>();
  if (!thread->end(phase, caller, now)) end_elsewhere(*thread, phase, caller, now);
}
template void record_end<Use::kBlock>(uint32_t, uint32_t) noexcept;
template void record_end<Use::kCall>(uint32_t, uint32_t) noexcept;

uint64_t begin_token(const Phase& phase) noexcept {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0) return 0;
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr) return 0;
  const uint32_t frame = begin_frame<Use::kToken>(*thread, phase.id);
  if (frame == 0) return 0;
  return static_cast<uint64_t>(epoch & 0xFFFF) << 48 |
         static_cast<uint64_t>(thread->serial()) << 32 | frame;
}

void rename_token(uint64_t token, const Phase& phase) noexcept {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0 || token == 0 || (epoch & 0xFFFF) != token >> 48) return;
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr || thread->serial() != (token >> 32 & 0xFFFF)) return;
  with_memory(false, [&] {
    thread->rename_frame(static_cast<uint32_t>(token), phase.id);
    return true;
  });
}

void end_token(uint64_t token, Closing closing) noexcept {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch == 0 || token == 0 || (epoch & 0xFFFF) != token >> 48) return;
  const uint64_t now = read_ticks();
  ThreadState* thread = recording_thread(epoch);
  if (thread == nullptr) return;
  const auto serial = static_cast<uint32_t>(token >> 32 & 0xFFFF);
  const auto frame = static_cast<uint32_t>(token);
  if (thread->serial() != serial) {
    // A generator that was moved to another thread: its frame stands on the stack of the first.
    if (ThreadState* other = parts().spans.threads().find(serial)) {
      other->request_end(frame, now);
    } else {
      Recorder::instance().drops().add(Drop::kUnmatchedEnds);
    }
  } else if (closing == Closing::kEnd) {
    thread->end_frame(frame, now);
  } else {
    thread->cancel_frame(frame);
  }
}

}  // namespace pig
