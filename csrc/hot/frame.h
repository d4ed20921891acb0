// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/event_ring.h"

namespace pig {

/// Who opens or closes a frame.
struct Caller {
  /// What takes turns with others on one thread, such as a task of an event loop. Not 0.
  uintptr_t task;
  /// The call of the function in which the `with` block stands: the end comes from the same.
  /// `of_call` has another mark for begin() and end(). 0 where the end comes with the frame's
  /// serial.
  uintptr_t block;

  static constexpr Caller of_call(uintptr_t task) { return {task, task | 1}; }
  bool is_call() const { return (block & 1) != 0; }
};

/// A phase that was entered and not left yet.
struct Frame {
  uint64_t begin;
  uint64_t child;        ///< time in frames whose parent this is
  cuda::EventRef event;  ///< recorded at the begin, or 0
  Caller caller;         ///< who opened it
  uint32_t path;
  uint32_t step;
  uint32_t phase;
  uint32_t serial;  ///< tells frames of one thread apart; 0 is none
  uint16_t depth;
  uint16_t parent;  ///< index in the stack
  uint8_t flags;
  bool closed;
};
static_assert(sizeof(Frame) == 64);

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
