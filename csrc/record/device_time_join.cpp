// SPDX-License-Identifier: Apache-2.0
#include "record/device_time_join.h"

#include <algorithm>
#include <utility>

namespace pig {

using cuda::DeviceTiming;
using cuda::EventRef;
using cuda::EventTimeline;

void DeviceTimeJoin::reset(DropCounters* drops) {
  drops_ = drops;
  heads_.clear();
  pinned_.clear();
  known_.clear();
  waiting_.clear();
  streams_.clear();
}

void DeviceTimeJoin::begin(const DeviceTiming& timing) {
  heads_.clear();
  for (const EventTimeline* timeline : timing.timelines()) heads_.push_back(timeline->head());
  pinned_.clear();
}

void DeviceTimeJoin::add(const Waiting& span) {
  if (waiting_.size() == kMaxWaiting) {
    drops_->add(Drop::kDeviceRingFull);
    return;
  }
  waiting_.push_back(span);
}

void DeviceTimeJoin::know(const DeviceTiming::Known& known) {
  const EventTimeline::Time& time = known.time;
  known_[cuda::event_ref(known.timeline, time.sequence)] = {time.device_ns, time.stream};
}

DeviceTimeJoin::Settlement DeviceTimeJoin::settle(const DeviceTiming& timing, bool final) {
  Settlement settlement;
  const std::vector<EventTimeline*> timelines = timing.timelines();
  std::vector<Waiting> still;
  for (const Waiting& span : waiting_) {
    const EventTimeline& timeline = *timelines[cuda::timeline_of(span.begin)];
    const auto begin = known_.find(span.begin);
    const auto end = known_.find(span.end);
    if (begin == known_.end() || end == known_.end()) {
      if (timeline.state() == EventTimeline::State::kFailed) {
        drops_->add(Drop::kDeviceFailed);
      } else if (final) {
        drops_->add(Drop::kDeviceUnfinished);
        settlement.spans.push_back(
            {span, {span.index | DeviceTimeItem::kUnfinished << 56, -1, -1}});
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

void DeviceTimeJoin::forget_unneeded() {
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

uint32_t DeviceTimeJoin::stream_number(const EventTimeline& timeline, uint32_t stream,
                                       std::vector<StreamItem>& added) {
  const uint64_t key = uint64_t{timeline.number()} << 32 | stream;
  const auto [found, is_new] = streams_.emplace(key, static_cast<uint32_t>(streams_.size()));
  if (is_new)
    added.push_back({reinterpret_cast<uint64_t>(timeline.stream(stream).handle),
                     static_cast<uint32_t>(timeline.device()), 0});
  return found->second;
}

std::map<uint32_t, uint64_t> DeviceTimeJoin::waiting_by_path() const {
  std::map<uint32_t, uint64_t> counts;
  for (const Waiting& span : waiting_) ++counts[span.path];
  return counts;
}

}  // namespace pig
