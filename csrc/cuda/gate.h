// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "base/ticks.h"

namespace pig::cuda {

/// What a phase that begins now does about the device.
enum class Gate : uint32_t {
  kClosed = 0,   ///< nothing: not recording, off, or a step that is not timed
  kTimed = 1,    ///< records events at its boundaries
  kOutside = 2,  ///< the same while the budget outside steps lasts
};
PIG_HOT extern std::atomic<Gate> device_gate;

}  // namespace pig::cuda
