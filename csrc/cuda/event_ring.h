// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <vector>

#include "base/ticks.h"
#include "cuda/driver.h"

namespace pig::cuda {

/// A record of an event: the number of its timeline + 1 in the high 8 bits, its sequence number
/// below. 0 is none.
using EventRef = uint64_t;
constexpr EventRef event_ref(uint8_t timeline, uint64_t sequence) {
  return static_cast<uint64_t>(timeline + 1) << 56 | sequence;
}
/// Of a frame without an event, of whose end a listener is to hear: no event has this number.
constexpr EventRef kOnlyHeard = 1;
/// A mark in a captured graph (cuda/graph_stamps.h) in a record's place: the number of its node.
constexpr EventRef kStamp = EventRef{1} << 55;
constexpr EventRef stamp_ref(uint8_t timeline, uint32_t node) {
  return event_ref(timeline, kStamp | node);
}
constexpr bool is_stamp(EventRef event) { return (event & kStamp) != 0; }
constexpr uint32_t node_of(EventRef event) { return static_cast<uint32_t>(event); }
constexpr uint32_t timeline_of(EventRef event) { return static_cast<uint32_t>(event >> 56) - 1; }
constexpr uint64_t sequence_of(EventRef event) { return event & ((uint64_t{1} << 56) - 1); }

/// The events of one device, created once and used in turn. Each record has a sequence number; its
/// event is in use until the record's time is known. A number whose event is still in use, because
/// its stream is far behind, is passed over: so a stream that hangs costs the others nothing.
///
/// A recording thread claims a number under the timeline's lock, and publishes or releases it when
/// the driver's call has returned, which may be much later. What was published the harvester alone
/// releases.
class EventRing {
 public:
  static constexpr uint32_t kEvents = 4096;

  enum class State : uint8_t {
    kFree,
    kClaimed,  ///< a thread is recording it
    kRecorded,
  };

  Event& event(uint64_t sequence) { return slot(sequence).event; }
  uint32_t stream(uint64_t sequence) const { return slot(sequence).stream; }

  /// Takes the next number for a record on the stream with this index. 0: every event is in use.
  uint64_t claim(uint32_t stream) {
    uint64_t sequence = head_.load(std::memory_order_relaxed) + 1;
    if (PIG_UNLIKELY((in_use(sequence).load(std::memory_order_acquire) & bit(sequence)) != 0)) {
      sequence = next_free(sequence);
      if (sequence == 0) return 0;
    }
    in_use(sequence).fetch_or(bit(sequence), std::memory_order_relaxed);
    Slot& taken = slot(sequence);
    taken.stream = stream;
    taken.state.store(State::kClaimed, std::memory_order_relaxed);
    taken.sequence.store(sequence, std::memory_order_relaxed);
    head_.store(sequence, std::memory_order_release);
    return sequence;
  }
  /// Calls `use` with the stream and the number of each event's newest record, and whether the
  /// event is in use. Under the lock.
  template <typename Use>
  void for_each(Use use) const {
    for (uint32_t i = 0; i < kEvents; ++i)
      use(slots_[i].stream, slots_[i].sequence.load(std::memory_order_relaxed),
          (in_use_[i / 64].load(std::memory_order_acquire) & bit(i)) != 0);
  }
  /// The driver has taken the record.
  void publish(uint64_t sequence) {
    slot(sequence).state.store(State::kRecorded, std::memory_order_release);
  }

  uint64_t head() const { return head_.load(std::memory_order_acquire); }
  /// Of a number up to the newest; kFree for one that was passed over or has come to nothing.
  State state(uint64_t sequence) const {
    const Slot& asked = slot(sequence);
    // The state first: where it is a later record's, so is the number.
    const State state = asked.state.load(std::memory_order_acquire);
    return asked.sequence.load(std::memory_order_acquire) == sequence ? state : State::kFree;
  }

  /// The record's time is known, or will never be, or there was none. In any order.
  void release(uint64_t sequence) {
    slot(sequence).state.store(State::kFree, std::memory_order_relaxed);
    in_use(sequence).fetch_and(~bit(sequence), std::memory_order_release);
  }
  /// Releases all that is not being recorded just now, and returns that. Under the lock.
  std::vector<uint64_t> release_all() {
    std::vector<uint64_t> claimed;
    for (const Slot& slot : slots_) {
      const uint64_t sequence = slot.sequence.load(std::memory_order_relaxed);
      const State state = slot.state.load(std::memory_order_acquire);
      if (state == State::kClaimed) claimed.push_back(sequence);
      if (state == State::kRecorded) release(sequence);
    }
    return claimed;
  }

 private:
  struct Slot {
    Event event = nullptr;
    std::atomic<uint64_t> sequence{0};
    uint32_t stream = 0;
    std::atomic<State> state{State::kFree};
  };
  static constexpr uint32_t kWords = kEvents / 64;

  Slot& slot(uint64_t sequence) { return slots_[sequence % kEvents]; }
  const Slot& slot(uint64_t sequence) const { return slots_[sequence % kEvents]; }
  std::atomic<uint64_t>& in_use(uint64_t sequence) { return in_use_[sequence / 64 % kWords]; }
  static uint64_t bit(uint64_t sequence) { return uint64_t{1} << sequence % 64; }

  /// The first number from `from` on whose event is free; 0 when none is. A word of bits says of 64
  /// events which are in use, so that a ring that is nearly full is searched in some 50 ns.
  [[gnu::noinline]] uint64_t next_free(uint64_t from) {
    uint64_t skipped = bit(from) - 1;  // the bits of the first word that stand before `from`
    // The first word comes again at the end, for those bits.
    for (uint32_t i = 0; i <= kWords; ++i, skipped = 0) {
      const uint64_t base = (from / 64 + i) * 64;
      const uint64_t used = in_use(base).load(std::memory_order_acquire) | skipped;
      if (used != ~uint64_t{0}) return base + static_cast<uint64_t>(std::countr_one(used));
    }
    return 0;
  }

  std::array<Slot, kEvents> slots_{};
  std::array<std::atomic<uint64_t>, kWords> in_use_{};
  std::atomic<uint64_t> head_{0};
};

}  // namespace pig::cuda
