// SPDX-License-Identifier: Apache-2.0
//
// One thread's part in device timing: at an enter or exit it records an event on the current
// stream.
//
// Shared boundaries. When a boundary comes so soon after the record of the last one returned, on
// the same thread and stream, that this thread can't have enqueued anything in between, the last
// event stands for this boundary too, so P adjacent or nested phases take P + 1 events and not 2 P.
// Another thread could have enqueued on the same stream, so nothing is shared on a stream that two
// threads have used in the step.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/drops.h"
#include "base/ticks.h"
#include "cuda/device_gate.h"
#include "cuda/event_timeline.h"

namespace pig::cuda {

enum class Boundary : uint8_t { kModule, kPhaseBegin, kPhaseEnd };

class EventRecorder {
 public:
  /// A recording begins for the thread with this serial.
  void reset(uint32_t thread);

  /// The event that stands for `now` on the current stream, or 0; why not is counted. `step` is the
  /// one that is open. May block, see BlockingCall. Where the recording is over when it returns,
  /// that is 0, and nothing is counted.
  /// In a capture it is a stamp, but for a module's.
  EventRef boundary(uint64_t now, uint32_t step, Boundary what) noexcept;

  /// The event of the last boundary, or the one that is being recorded: until the thread has noted
  /// it elsewhere, the harvester finds it here.
  EventRef in_hand() const { return in_hand_.load(std::memory_order_acquire); }

 private:
  EventRef event_of(uint64_t now, uint32_t step, Boundary what) noexcept;
  void find_timeline(Context context) noexcept;
  EventRef record(const Driver& driver, Boundary what) noexcept;
  EventRef stamp(Boundary what) noexcept;
  EventRef skip(Drop cause) noexcept;
  EventRef skip(const DriverError& error) noexcept;
  Drop unavailable() const;

  Context context_ = nullptr;  ///< that was current when `timeline_` was found
  EventTimeline* timeline_ = nullptr;
  EventTimeline::FoundStream stream_;
  std::atomic<EventRef> in_hand_{0};
  Drop skipped_{};  ///< why the last boundary has no event
  uint64_t last_return_ = 0;
  EventRef last_event_ = 0;
  uint32_t thread_ = 0;
  uint64_t checked_step_ = ~uint64_t{0};  ///< in which the context was last looked at
};

}  // namespace pig::cuda
