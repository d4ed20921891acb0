// SPDX-License-Identifier: Apache-2.0
//
// The finished spans of one thread that nobody has taken yet.
//
// The owner thread alone writes the head; the tail is moved only under `lock_`, by the harvester
// or, when the ring is full, by the owner. In the common case the owner takes no lock and makes no
// call: `credit_` counts the spans until it must look around again (`refill`), which is when the
// ring is half full, to wake the harvester, or full. Then the owner hands the spans to the
// recording's `SpanOverflow` itself: statistics never lose a span, the history of these spans is
// lost and counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/threads.h"
#include "base/ticks.h"
#include "cuda/event_ring.h"
#include "hot/span.h"

namespace pig {

/// Takes the spans for which a thread's ring has no room. From any thread.
class SpanOverflow {
 public:
  virtual void fold(std::span<const RawSpan> spans) = 0;

 protected:
  ~SpanOverflow() = default;
};

class SpanRing {
 public:
  static constexpr uint32_t kSpans = 8192;

  /// The device boundaries of a finished span.
  struct Events {
    cuda::EventRef begin;
    cuda::EventRef end;
  };

  /// Before the first `reset`. Throws std::bad_alloc.
  void get_buffer();
  /// Empties the ring for a recording. Without an `overflow` nobody reads it: when it is full
  /// it is emptied.
  void reset(SpanOverflow* overflow, void (*wake_harvester)());

  // --- the owner ---

  /// Makes room for events beside the spans. False when there is no memory.
  bool hold_events() noexcept { return PIG_LIKELY(events_ != nullptr) || make_events(); }
  /// Of the span that is pushed next.
  void set_events(const Events& events) {
    events_[head_.load(std::memory_order_relaxed) % kSpans] = events;
  }
  void push(const RawSpan& span) {
    const uint64_t head = head_.load(std::memory_order_relaxed);
    spans_[head % kSpans] = span;
    head_.store(head + 1, std::memory_order_release);
  }
  /// After each push: sees to it that there is room for the next.
  void make_room() {
    if (PIG_UNLIKELY(--credit_ == 0)) refill();
  }

  // --- the harvester ---

  /// How many were pushed so far.
  uint64_t pushed() const { return head_.load(std::memory_order_acquire); }

  /// Moves the spans to the end of `spans`, and the events of those with kDeviceTimed to that of
  /// `events`, in the same order.
  void drain(std::vector<RawSpan>& spans, std::vector<Events>& events);

 private:
  bool make_events() noexcept;
  void refill();
  template <typename Use>
  void take_all(Use use);

  // The owner's cache line.
  std::atomic<uint64_t> head_{0};
  uint32_t credit_ = 0;
  std::unique_ptr<RawSpan[]> spans_;
  std::unique_ptr<Events[]> events_;  ///< beside the spans; made when the device is first timed
  SpanOverflow* overflow_ = nullptr;
  void (*wake_harvester_)() = nullptr;

  // Shared.
  alignas(64) std::atomic<uint64_t> tail_{0};
  SpinLock lock_;
};

}  // namespace pig
