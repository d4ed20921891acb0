// SPDX-License-Identifier: Apache-2.0
//
// Where one thread stands on the device: the part of an enter or exit that marks a boundary of a
// phase with an event.
//
// Shared boundaries. When a boundary comes less than a microsecond after the record of the last one
// returned, on the same thread and stream, no work can have been enqueued in between by this
// thread: the cheapest enqueue takes about two. Then the last event marks this boundary too, so P
// adjacent or nested phases take P + 1 events and not 2 P. Another thread could have enqueued on
// the same stream, so nothing is shared on a stream that two threads have used in the step.
#pragma once

#include <cstdint>

#include "base/drops.h"
#include "cuda/device_timer.h"

namespace pig::cuda {

/// A record of an event: the number of its timer + 1 in the high 8 bits, its sequence number below.
/// 0 is none.
using EventRef = uint64_t;
constexpr EventRef event_ref(uint8_t timer, uint64_t sequence) {
  return static_cast<uint64_t>(timer + 1) << 56 | sequence;
}
constexpr uint32_t timer_of(EventRef event) { return static_cast<uint32_t>(event >> 56) - 1; }
constexpr uint64_t sequence_of(EventRef event) { return event & ((uint64_t{1} << 56) - 1); }

class DeviceLane {
 public:
  /// A recording begins for the thread with this serial.
  void reset(uint32_t thread);

  /// The event that marks `now` on the current stream, or 0; why not is counted. `step` is the one
  /// that is open.
  EventRef boundary(uint64_t now, uint32_t step) noexcept;

 private:
  EventRef skip(Drop cause) noexcept;
  EventRef skip_captured() noexcept;
  Drop unavailable() const;

  Context context_ = nullptr;
  DeviceTimer* timer_ = nullptr;
  StreamUse* stream_ = nullptr;
  uint64_t last_return_ = 0;
  EventRef last_event_ = 0;
  uint32_t thread_ = 0;
};

}  // namespace pig::cuda
