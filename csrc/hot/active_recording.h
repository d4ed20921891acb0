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

}  // namespace pig
