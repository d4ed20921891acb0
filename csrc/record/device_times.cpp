// SPDX-License-Identifier: Apache-2.0
#include "record/device_times.h"

#include <algorithm>
#include <utility>

namespace pig {
namespace {

constexpr size_t kMaxWaiting = 1u << 16;
/// Looking for the driver goes through all libraries that are loaded. It is done this often, and at
/// first more often: after a sixteenth of the time that has passed.
constexpr int64_t kDriverIntervalNs = 1'000'000'000;
constexpr int64_t kDriverShare = 16;

}  // namespace

void DeviceTimes::reset(const Session& session) {
  drops_ = &session.drops;
  heads_.clear();
  pinned_.clear();
  known_.clear();
  waiting_.clear();
  given_up_.clear();
  streams_.clear();
  driver_due_ns_ = 0;
  driver_is_loaded_ = false;
}

void DeviceTimes::begin() {
  heads_.clear();
  for (const cuda::EventTimeline* timeline : cuda::DeviceTiming::instance().timelines())
    heads_.push_back(timeline->head());
  pinned_.clear();
}

void DeviceTimes::add(const Waiting& span) {
  if (waiting_.size() == kMaxWaiting) return drops_->add(Drop::kDeviceRingFull);
  waiting_.push_back(span);
}

void DeviceTimes::drain(Harvest& harvest) {
  const cuda::DeviceTiming& timing = cuda::DeviceTiming::instance();
  if (timing.attached()) {
    for (const Time& time : harvest.findings.times) known_[time.event] = time;
    std::vector<DeviceClockItem> clocks;
    for (const auto& [device, point] : harvest.findings.points)
      clocks.push_back(
          {static_cast<uint32_t>(device), 0, point.device_ns, point.run_ns, point.uncertainty_ns});
    harvest.log.append(clocks);
    resolve(harvest.log, harvest.final());
    forget_unneeded();
  }
  if (timing.has_warnings()) notify(Notice::kDeviceWarnings);
  if (timing.wanted()) look_for_driver(harvest);
  if (timing.records() == 0) return;
  std::map<uint32_t, uint64_t> pending = given_up_;
  for (const Waiting& span : waiting_) ++pending[span.path];
  harvest.state.device = {
      timing.every(), timing.records(), timing.record_ns(), {pending.begin(), pending.end()}};
}

/// Writes the spans whose times are known now. `final`: those that still wait are given up.
void DeviceTimes::resolve(RunLog& log, bool final) {
  const std::vector<cuda::EventTimeline*> timelines = cuda::DeviceTiming::instance().timelines();
  std::vector<DeviceTimeItem> items;
  std::vector<Waiting> still;
  for (const Waiting& span : waiting_) {
    const cuda::EventTimeline& timeline = *timelines[cuda::timeline_of(span.begin)];
    const Time* const begin = time_of(span.begin);
    const Time* const end = time_of(span.end);
    if (begin != nullptr && end != nullptr) {
      if (const std::optional<Drop> cause = obstacle(span, *begin, *end)) {
        drops_->add(*cause);
        continue;
      }
      const uint64_t stream = stream_number(timeline, *begin, log);
      if (stream == DeviceTimeItem::kNoStream) {
        drops_->add(Drop::kDeviceRingFull);
        continue;
      }
      const int64_t duration_ns = std::max<int64_t>(end->device_ns - begin->device_ns, 0);
      items.push_back({span.index | stream << 40, begin->device_ns, duration_ns});
      statistics_.fold_device(span.step, span.path, span.flags, static_cast<uint64_t>(duration_ns));
    } else if (timeline.state() == cuda::EventTimeline::State::kFailed) {
      drops_->add(Drop::kDeviceFailed);
    } else if (final) {
      drops_->add(Drop::kDeviceUnfinished);
      ++given_up_[span.path];
      items.push_back(
          {span.index | DeviceTimeItem::kNoStream << 40 | DeviceTimeItem::kUnfinished << 56, -1,
           -1});
    } else {
      still.push_back(span);
    }
  }
  waiting_ = std::move(still);
  log.append(items);
}

std::optional<Drop> DeviceTimes::obstacle(const Waiting& span, const Time& begin, const Time& end) {
  if (begin.device_ns < 0 || end.device_ns < 0) return Drop::kDeviceCapturing;
  // Between two streams, or devices, there is no device time.
  if (cuda::timeline_of(span.begin) != cuda::timeline_of(span.end) || begin.stream != end.stream)
    return Drop::kDeviceStreamChanged;
  return std::nullopt;
}

uint64_t DeviceTimes::stream_number(const cuda::EventTimeline& timeline, const Time& time,
                                    RunLog& log) {
  const uint64_t handle = reinterpret_cast<uint64_t>(time.handle);
  const std::pair key(timeline.number(), cuda::is_per_thread(time.handle) ? time.stream : handle);
  if (const auto found = streams_.find(key); found != streams_.end()) return found->second;
  if (streams_.size() == DeviceTimeItem::kNoStream) return DeviceTimeItem::kNoStream;
  log.append(std::vector<StreamItem>{{handle, static_cast<uint32_t>(timeline.device()), 0}});
  return streams_.emplace(key, streams_.size()).first->second;
}

void DeviceTimes::forget_unneeded() {
  if (known_.size() < 2 * cuda::EventRing::kEvents * heads_.size()) return;
  for (const Waiting& span : waiting_) {
    pinned_.insert(span.begin);
    pinned_.insert(span.end);
  }
  std::erase_if(known_, [this](const auto& entry) {
    const uint32_t timeline = cuda::timeline_of(entry.first);
    const bool is_recent =
        timeline >= heads_.size() ||
        cuda::sequence_of(entry.first) + cuda::EventRing::kEvents > heads_[timeline];
    return !is_recent && !pinned_.contains(entry.first);
  });
}

void DeviceTimes::look_for_driver(const Harvest& harvest) {
  const int64_t now_ns = harvest.state.now_ns;
  if (harvest.occasion != Occasion::kTick || now_ns >= driver_due_ns_) {
    driver_is_loaded_ = cuda::driver_is_loaded();
    driver_due_ns_ = now_ns + std::min(kDriverIntervalNs, now_ns / kDriverShare);
  }
  if (driver_is_loaded_) notify(Notice::kDeviceProbe);
}

}  // namespace pig
