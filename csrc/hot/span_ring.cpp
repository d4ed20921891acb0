// SPDX-License-Identifier: Apache-2.0
#include "hot/span_ring.h"

#include <sched.h>

#include <algorithm>
#include <mutex>
#include <new>

namespace pig {

void SpanRing::get_buffer() {
  // Not value-initialised: the pages are touched only as they are used.
  if (!spans_) spans_.reset(new RawSpan[kSpans]);
}

void SpanRing::reset(SpanOverflow* overflow, void (*wake_harvester)()) {
  const std::lock_guard lock(lock_);
  overflow_ = overflow;
  wake_harvester_ = wake_harvester;
  head_.store(0, std::memory_order_relaxed);
  tail_.store(0, std::memory_order_relaxed);
  credit_ = kSpans / 2;
}

bool SpanRing::make_events() noexcept {
  events_.reset(new (std::nothrow) Events[kSpans]);
  return events_ != nullptr;
}

/// Hands all spans, in pieces that lie together, to `use(index, count)`. Under the lock.
template <typename Use>
void SpanRing::take_all(Use use) {
  const uint64_t head = head_.load(std::memory_order_acquire);
  for (uint64_t tail = tail_.load(std::memory_order_relaxed); tail != head;) {
    const uint64_t at = tail % kSpans;
    const uint64_t count = std::min<uint64_t>(head - tail, kSpans - at);
    use(at, count);
    tail += count;
  }
  tail_.store(head, std::memory_order_release);
}

void SpanRing::refill() {
  if (overflow_ == nullptr) {
    tail_.store(head_.load(std::memory_order_relaxed), std::memory_order_relaxed);
    credit_ = kSpans / 2;
    return;
  }
  for (;;) {
    const uint64_t used =
        head_.load(std::memory_order_relaxed) - tail_.load(std::memory_order_acquire);
    const auto free = static_cast<uint32_t>(kSpans - used);
    if (free > kSpans / 2) {
      credit_ = free - kSpans / 2;
      return;
    }
    if (free > 0) {
      wake_harvester_();
      credit_ = free;
      return;
    }
    // Full. Either we hand the spans over, or the holder of the lock is just taking them away.
    if (lock_.try_lock()) {
      take_all([this](uint64_t at, uint64_t count) { overflow_->fold({&spans_[at], count}); });
      lock_.unlock();
    } else {
      sched_yield();
    }
  }
}

void SpanRing::drain(std::vector<RawSpan>& spans, std::vector<Events>& events) {
  const std::lock_guard lock(lock_);
  take_all([&](uint64_t at, uint64_t count) {
    spans.insert(spans.end(), &spans_[at], &spans_[at] + count);
    for (uint64_t i = at; i < at + count; ++i)
      if ((spans_[i].flags() & kDeviceTimed) != 0) events.push_back(events_[i]);
  });
}

}  // namespace pig
