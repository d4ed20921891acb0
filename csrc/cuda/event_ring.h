// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "cuda/driver.h"

namespace pig::cuda {

/// A record of an event: the number of its timeline + 1 in the high 8 bits, its sequence number
/// below. 0 is none.
using EventRef = uint64_t;
constexpr EventRef event_ref(uint8_t timeline, uint64_t sequence) {
  return static_cast<uint64_t>(timeline + 1) << 56 | sequence;
}
constexpr uint32_t timeline_of(EventRef event) { return static_cast<uint32_t>(event >> 56) - 1; }
constexpr uint64_t sequence_of(EventRef event) { return event & ((uint64_t{1} << 56) - 1); }

/// The events of one device, created once and used in turn. Each record has a sequence number; its
/// event is in use until the record's time is known. A number whose event is still in use, because
/// its stream is far behind, is passed over: so a stream that hangs costs the others nothing. The
/// recording threads claim and publish under the timeline's lock; the harvester alone releases.
class EventRing {
 public:
  static constexpr uint32_t kEvents = 4096;

  Event& event(uint64_t sequence) { return slot(sequence).event; }
  uint32_t stream(uint64_t sequence) const { return slot(sequence).stream; }

  /// The sequence number of the next record, or 0 when every event is in use.
  uint64_t claim() const {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    for (uint64_t next = head + 1; next <= head + kEvents; ++next)
      if (!slot(next).in_use.load(std::memory_order_acquire)) return next;
    return 0;
  }
  /// The record that was claimed has been made, on the stream with this index.
  void publish(uint64_t sequence, uint32_t stream) {
    Slot& taken = slot(sequence);
    taken.sequence = sequence;
    taken.stream = stream;
    taken.in_use.store(true, std::memory_order_relaxed);
    head_.store(sequence, std::memory_order_release);
  }

  uint64_t head() const { return head_.load(std::memory_order_acquire); }
  /// Of a number up to the newest: whether there was such a record, or it was passed over.
  bool is_record(uint64_t sequence) const { return slot(sequence).sequence == sequence; }

  /// The record's time is known, or will never be. In any order.
  void release(uint64_t sequence) { slot(sequence).in_use.store(false, std::memory_order_release); }
  void release_all() {
    for (Slot& slot : slots_) slot.in_use.store(false, std::memory_order_release);
  }

 private:
  struct Slot {
    Event event = nullptr;
    uint64_t sequence = 0;
    uint32_t stream = 0;
    std::atomic<bool> in_use{false};
  };

  Slot& slot(uint64_t sequence) { return slots_[sequence % kEvents]; }
  const Slot& slot(uint64_t sequence) const { return slots_[sequence % kEvents]; }

  std::array<Slot, kEvents> slots_{};
  std::atomic<uint64_t> head_{0};
};

}  // namespace pig::cuda
