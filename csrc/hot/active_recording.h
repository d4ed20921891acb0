// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ticks.h"

namespace pig {

/// Number of the active recording, 0 when there is none.
PIG_HOT extern std::atomic<uint32_t> active_epoch;

/// The open step: its serial in the low half, the serial of the thread that opened it in the high
/// half.
constexpr uint64_t kNoOpenStep = ~uint64_t{0};
PIG_HOT extern std::atomic<uint64_t> open_step;

/// How many calls of hooked functions were observed: a sign that the program does something.
/// Counted with the GIL.
PIG_HOT extern std::atomic<uint64_t> observed_calls;

/// Called where phases begin and end in steps that it has chosen, to read there what is known at
/// that moment alone. By the thread that opened the step, with the GIL; nothing of it may throw.
///
/// It chooses a step by opening the gate for boundaries (`cuda::set_boundaries_heard`), and closes
/// it at the step's end. In the other steps a phase costs what it costs without a listener.
class BoundaryListener {
 public:
  BoundaryListener() = default;
  BoundaryListener(const BoundaryListener&) = delete;
  BoundaryListener& operator=(const BoundaryListener&) = delete;

  virtual void step_begins(uint32_t step) noexcept = 0;
  virtual void step_ends() noexcept = 0;
  /// There was no such step.
  virtual void step_is_dropped() noexcept = 0;
  /// `depth`: 0 for an outermost phase. A phase may end under another path than it began with.
  virtual void phase_begins(uint32_t path, uint32_t depth) noexcept = 0;
  virtual void phase_ends(uint32_t path, uint32_t depth) noexcept = 0;

 protected:
  ~BoundaryListener() = default;  // it lives forever, as threads may be in it
};

/// Null where there is none.
extern std::atomic<BoundaryListener*> boundary_listener;

}  // namespace pig
