// SPDX-License-Identifier: Apache-2.0
//
// Joins spans with the times of their events.
//
// A span is drained from its ring as soon as it has ended on the host; its device may reach its
// events much later. Until then it waits here. The time of an event that is known is kept for as
// long as a span may still refer to it: a phase around the whole loop began with an event whose
// place in the ring has been used again many times.
//
// Each harvest goes: `begin`, `pin` (what threads have in hand, and what open frames refer to),
// `add` (the drained spans), `know` (times that became known), `settle`. In this order an event
// that a span will need is never forgotten: a thread had it in hand, the span was open when frames
// were looked at, or it is in what was drained afterwards, or it began later. What began later
// refers to one of the newest events: as many as the ring has are kept in any case.
//
// Used by the holder of the harvest lock.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/drops.h"
#include "cuda/device_timing.h"
#include "hot/span.h"
#include "log/items.h"

namespace pig {

class DeviceTimeJoin {
 public:
  /// A drained span that was timed on the device.
  struct Waiting {
    uint64_t index;  ///< among all spans of the run
    cuda::EventRef begin;
    cuda::EventRef end;
    uint32_t step;
    uint32_t path;
    uint8_t flags;
  };
  struct Settled {
    Waiting span;
    DeviceTimeItem item;
  };
  struct Settlement {
    std::vector<StreamItem> streams;  ///< new ones, which the items refer to
    std::vector<Settled> spans;
  };

  /// A recording begins.
  void reset(DropCounters* drops) {
    drops_ = drops;
    heads_.clear();
    pinned_.clear();
    known_.clear();
    waiting_.clear();
    given_up_.clear();
    streams_.clear();
  }

  void begin(const cuda::DeviceTiming& timing) {
    heads_.clear();
    for (const cuda::EventTimeline* timeline : timing.timelines())
      heads_.push_back(timeline->head());
    pinned_.clear();
  }

  void pin(cuda::EventRef event) {
    if (event != 0) pinned_.insert(event);
  }
  void add(const Waiting& span) {
    if (waiting_.size() == kMaxWaiting) {
      drops_->add(Drop::kDeviceRingFull);
      return;
    }
    waiting_.push_back(span);
  }

  void know(const std::vector<cuda::EventTimeline::Time>& times) {
    for (const cuda::EventTimeline::Time& time : times) known_[time.event] = time;
  }

  /// The spans whose times are known now. `final`: those that still wait are given up.
  Settlement settle(const cuda::DeviceTiming& timing, bool final) {
    Settlement settlement;
    const std::vector<cuda::EventTimeline*> timelines = timing.timelines();
    std::vector<Waiting> still;
    for (const Waiting& span : waiting_) {
      const cuda::EventTimeline& timeline = *timelines[cuda::timeline_of(span.begin)];
      const auto begin = known_.find(span.begin);
      const auto end = known_.find(span.end);
      if (begin == known_.end() || end == known_.end()) {
        if (timeline.state() == cuda::EventTimeline::State::kFailed) {
          drops_->add(Drop::kDeviceFailed);
        } else if (final) {
          drops_->add(Drop::kDeviceUnfinished);
          ++given_up_[span.path];
          settlement.spans.push_back(
              {span,
               {span.index | DeviceTimeItem::kNoStream << 40 | DeviceTimeItem::kUnfinished << 56,
                -1, -1}});
        } else {
          still.push_back(span);
        }
        continue;
      }
      if (begin->second.device_ns < 0 || end->second.device_ns < 0) {
        drops_->add(Drop::kDeviceCapturing);
        continue;
      }
      // Between two streams, or devices, there is no stream time.
      if (cuda::timeline_of(span.begin) != cuda::timeline_of(span.end) ||
          begin->second.stream != end->second.stream) {
        drops_->add(Drop::kDeviceStreamChanged);
        continue;
      }
      const uint64_t stream = stream_number(timeline, begin->second.stream, settlement.streams);
      const int64_t duration_ns =
          std::max<int64_t>(end->second.device_ns - begin->second.device_ns, 0);
      settlement.spans.push_back(
          {span, {span.index | stream << 40, begin->second.device_ns, duration_ns}});
    }
    waiting_ = std::move(still);
    forget_unneeded();
    return settlement;
  }

  bool waiting() const { return !waiting_.empty(); }
  /// How many spans wait, or were given up, by path.
  std::map<uint32_t, uint64_t> waiting_by_path() const {
    std::map<uint32_t, uint64_t> counts = given_up_;
    for (const Waiting& span : waiting_) ++counts[span.path];
    return counts;
  }

 private:
  static constexpr size_t kMaxWaiting = 1u << 16;

  uint32_t stream_number(const cuda::EventTimeline& timeline, uint32_t stream,
                         std::vector<StreamItem>& added) {
    const uint64_t key = uint64_t{timeline.number()} << 32 | stream;
    const auto [found, is_new] = streams_.emplace(key, static_cast<uint32_t>(streams_.size()));
    if (is_new)
      added.push_back({reinterpret_cast<uint64_t>(timeline.stream(stream).handle),
                       static_cast<uint32_t>(timeline.device()), 0});
    return found->second;
  }

  void forget_unneeded() {
    if (known_.size() < 2 * cuda::EventRing::kEvents * heads_.size()) return;
    for (const Waiting& span : waiting_) {
      pinned_.insert(span.begin);
      pinned_.insert(span.end);
    }
    std::erase_if(known_, [this](const auto& entry) {
      const uint32_t timeline = cuda::timeline_of(entry.first);
      const bool recent =
          timeline >= heads_.size() ||
          cuda::sequence_of(entry.first) + cuda::EventRing::kEvents > heads_[timeline];
      return !recent && pinned_.count(entry.first) == 0;
    });
  }

  DropCounters* drops_ = nullptr;
  std::vector<uint64_t> heads_;  ///< by timeline: the newest event when this harvest began
  std::unordered_set<cuda::EventRef> pinned_;
  std::unordered_map<cuda::EventRef, cuda::EventTimeline::Time> known_;
  std::vector<Waiting> waiting_;
  std::map<uint32_t, uint64_t> given_up_;  ///< by path, at the end
  std::map<uint64_t, uint32_t> streams_;   ///< timeline << 32 | stream: number in the run
};

}  // namespace pig
