// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <utility>

#include "base/clock.h"
#include "base/drops.h"
#include "base/spin_lock.h"
#include "base/throwing.h"
#include "hot/span.h"
#include "hot/span_ring.h"
#include "record/span_statistics.h"
#include "record/step_tracker.h"

namespace pig {

/// Statistics of the spans that found no room in their threads' rings, until the harvester takes
/// them. The threads fold the spans themselves, without I/O.
class OverflowStatistics final : public SpanOverflow {
 public:
  void reset(const Clock* clock, const StepTracker* steps, DropCounters* drops) {
    clock_ = clock;
    steps_ = steps;
    drops_ = drops;
    statistics_.clear();
    spans_ = 0;
  }

  void fold(std::span<const RawSpan> spans) override {
    drops_->add(Drop::kRingFull, spans.size());
    const std::lock_guard lock(lock_);
    size_t folded = 0;
    const bool fits = try_allocating([&] {
      for (; folded != spans.size(); ++folded, ++spans_) {
        const RawSpan& span = spans[folded];
        statistics_.fold(*steps_, span, to_nanoseconds(*clock_, span));
        if ((span.flags() & kDeviceTimed) != 0) drops_->add(Drop::kDeviceHistory);
      }
    });
    if (!fits) drops_->add(Drop::kNoMemory, spans.size() - folded);
  }

  /// Moves all to `statistics`. Returns how many spans that are.
  uint64_t take(SpanStatistics& statistics) {
    SpanStatistics taken;
    uint64_t spans = 0;
    {
      const std::lock_guard lock(lock_);
      std::swap(taken, statistics_);
      std::swap(spans, spans_);
    }
    if (spans != 0) statistics.absorb(taken, *steps_);
    return spans;
  }

 private:
  const Clock* clock_ = nullptr;
  const StepTracker* steps_ = nullptr;
  DropCounters* drops_ = nullptr;
  SpinLock lock_;
  SpanStatistics statistics_;
  uint64_t spans_ = 0;
};

}  // namespace pig
