// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/event_ring.h"

namespace pig {

/// A phase that was entered and not left yet.
struct Frame {
  uint64_t begin;
  uint64_t child;        ///< time in frames whose parent this is
  cuda::EventRef event;  ///< recorded at the begin, or 0
  uint32_t path;
  uint32_t step;
  uint32_t phase;
  uint32_t serial;  ///< tells frames of one thread apart; 0 is none
  uint16_t depth;
  uint16_t parent;  ///< index in the stack
  uint8_t flags;
  bool closed;
};

/// What `copy_open` reads while the owner works. Released field by field, the serial last: whoever
/// sees one new field also sees that the frame before it is gone. On x86-64 these are plain stores.
template <typename T>
void publish(T& field, std::type_identity_t<T> value) {
  __atomic_store_n(&field, value, __ATOMIC_RELEASE);
}
template <typename T>
T observe(const T& field) {
  return __atomic_load_n(&field, __ATOMIC_ACQUIRE);
}

/// A copy of an open frame, for other threads than its own.
struct OpenFrame {
  uint64_t begin;
  cuda::EventRef event;
  uint32_t path;
  uint32_t step;
  uint32_t depth;
};

}  // namespace pig
