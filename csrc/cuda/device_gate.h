// SPDX-License-Identifier: Apache-2.0
//
// The gate of the hot path: what a phase that begins now does beside noting its times. Closed, as
// it is in most steps, it costs a load and a branch.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ticks.h"

namespace pig::cuda {

/// One of the first three says what is done about the device; `kBoundaries` may come on top.
enum class Gate : uint32_t {
  kClosed = 0,      ///< nothing: not recording, off, or a step that is not timed
  kTimed = 1,       ///< records events at its boundaries
  kOutside = 2,     ///< the same while the budget outside steps lasts
  kBoundaries = 4,  ///< the listener of boundaries is told (hot/active_recording.h)
};
PIG_HOT extern std::atomic<Gate> device_gate;

constexpr Gate operator|(Gate a, Gate b) {
  return static_cast<Gate>(static_cast<uint32_t>(a) | static_cast<uint32_t>(b));
}
constexpr Gate timing_of(Gate gate) {
  return static_cast<Gate>(static_cast<uint32_t>(gate) & ~static_cast<uint32_t>(Gate::kBoundaries));
}
constexpr Gate boundaries_of(Gate gate) {
  return static_cast<Gate>(static_cast<uint32_t>(gate) & static_cast<uint32_t>(Gate::kBoundaries));
}

/// What device timing wants; leaves the boundaries alone.
inline void set_timing_gate(Gate timing) {
  Gate gate = device_gate.load(std::memory_order_relaxed);
  while (!device_gate.compare_exchange_weak(gate, timing | boundaries_of(gate))) {
  }
}

/// Leaves device timing alone.
inline void set_boundaries_heard(bool heard) {
  Gate gate = device_gate.load(std::memory_order_relaxed);
  const Gate boundaries = heard ? Gate::kBoundaries : Gate::kClosed;
  while (!device_gate.compare_exchange_weak(gate, timing_of(gate) | boundaries)) {
  }
}

}  // namespace pig::cuda
