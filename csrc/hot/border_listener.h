// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

namespace pig {

/// Hears where phases begin and end in steps that it has chosen, to read there what is known at
/// that moment alone. By the thread that opened the step, with the GIL; nothing of it may throw.
///
/// It chooses a step by opening the gate for borders (`cuda::set_borders_heard`), and closes it at
/// the step's end. In the other steps a phase costs what it costs without a listener.
class BorderListener {
 public:
  BorderListener() = default;
  BorderListener(const BorderListener&) = delete;
  BorderListener& operator=(const BorderListener&) = delete;

  virtual void step_begins(uint32_t step) noexcept = 0;
  virtual void step_ends() noexcept = 0;
  /// There was no such step.
  virtual void step_is_dropped() noexcept = 0;
  /// `depth`: 0 for an outermost phase. A phase may end under another path than it began with.
  virtual void phase_begins(uint32_t path, uint32_t depth) noexcept = 0;
  virtual void phase_ends(uint32_t path, uint32_t depth) noexcept = 0;

 protected:
  ~BorderListener() = default;  // it lives forever, as threads may be in it
};

/// Null where there is none.
extern std::atomic<BorderListener*> border_listener;

}  // namespace pig
