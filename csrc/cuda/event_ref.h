// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pig::cuda {

/// A record of an event: the number of its timeline + 1 in the high 8 bits, its sequence number
/// below. 0 is none.
using EventRef = uint64_t;
constexpr EventRef event_ref(uint8_t timeline, uint64_t sequence) {
  return static_cast<uint64_t>(timeline + 1) << 56 | sequence;
}
constexpr uint32_t timeline_of(EventRef event) { return static_cast<uint32_t>(event >> 56) - 1; }
constexpr uint64_t sequence_of(EventRef event) { return event & ((uint64_t{1} << 56) - 1); }

}  // namespace pig::cuda
