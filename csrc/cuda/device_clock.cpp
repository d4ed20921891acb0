// SPDX-License-Identifier: Apache-2.0
#include "cuda/device_clock.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <utility>

namespace pig::cuda {
namespace {

// The first anchor's time: what was recorded before it is not negative.
constexpr int64_t kOriginNs = 1'000'000'000'000;

constexpr uint32_t kAnchors = 256;  // some 80 s of them
/// Up to here a float of milliseconds tells ticks of 31 ns apart.
constexpr int64_t kMaxDistanceNs = 450'000'000;
/// The next tick may be 95 ms later.
constexpr int64_t kAnchorNs = 320'000'000;
constexpr int64_t kAdoptedNs = 280'000'000;
constexpr int64_t kSparingAnchorNs = 10'000'000'000;

// Below this a float of milliseconds has steps of less than a nanosecond.
constexpr int64_t kExactNs = 8'000'000;
constexpr uint32_t kTickSamples = 16;
/// No device's counter is slower. A longer divisor shows that the distances were few and alike.
constexpr int64_t kMaxTickNs = 2'000;

constexpr uint32_t kBrackets = 20;
constexpr uint32_t kMaxBurstTicks = 10;
constexpr int64_t kFirstIntervalNs = 500'000'000;
constexpr int64_t kMaxIntervalNs = 5'000'000'000;
constexpr int64_t kNarrowNs = 50'000;
constexpr int64_t kMaxDriftInverse = 5'000;  // clocks differ by at most 200 ppm
constexpr int64_t kMinWaitNs = 2'000;
constexpr int64_t kFirstWaitNs = 8'000;
constexpr int64_t kMaxWaitNs = 100'000;

/// Some microseconds at most, also under a clock that stands still.
void wait_until(const Clock& clock, int64_t until_ns) {
  for (int i = 0; i < 4096 && clock.to_ns(read_ticks()) < until_ns; ++i) {
#if defined(__x86_64__)
    _mm_pause();
#endif
  }
}

}  // namespace

DriverError DeviceClock::create(bool record) {
  events_recorded_ = record;
  if (const int result = driver_.StreamCreate(&stream_, kStreamNonBlocking))
    return {"cuStreamCreate", result};
  for (uint32_t i = 0; i < kAnchors; ++i) {
    Event event = nullptr;
    if (const DriverError error = make_event(event, record)) return error;
    free_.push_back(event);
  }
  return {};
}

DriverError DeviceClock::make_event(Event& event, bool record) const {
  if (const int result = driver_.EventCreate(&event, kEventDefault))
    return {"cuEventCreate", result};
  return {"cuEventRecord", record ? driver_.EventRecord(event, stream_) : kSuccess};
}

void DeviceClock::restart(const Clock& clock) {
  clock_ = &clock;
  for (const Anchor& anchor : anchors_) free_.push_back(anchor.event);
  anchors_.clear();
  if (pending_ != nullptr) free_.push_back(std::exchange(pending_, nullptr));
  correlation_due_ns_ = 0;
  correlation_interval_ns_ = kFirstIntervalNs;
  wait_ns_ = kFirstWaitNs;
  burst_ = {};
  points_.clear();
  last_point_.reset();
}

DriverError DeviceClock::tick(bool sparing, bool may_correlate) {
  if (pending_ != nullptr) {
    const int result = driver_.EventQuery(pending_);
    if (result == kNotReady) return {};
    if (result != kSuccess) return {"cuEventQuery", result};
    if (anchors_.empty() && tick_samples_ == 0 && events_recorded_)
      if (const DriverError error = learn_tick()) return error;
    int64_t device_ns = 0;
    if (const DriverError error = measure(pending_, device_ns)) return error;
    const Event complete = std::exchange(pending_, nullptr);
    // Anchors ascend, and what was adopted meanwhile may be later.
    if (anchors_.empty() || device_ns > anchors_.back().device_ns) {
      anchors_.push_back({complete, device_ns});
    } else {
      free_.push_back(complete);
    }
    // A wide bracket, but better than none.
    if (burst_.attempts != 0) bracket(device_ns, last_record_ns_, now_ns());
  }
  const bool first = anchors_.empty();
  if (!first && may_correlate && correlation_due(sparing)) return correlate();
  const bool due =
      first || now_ns() - last_anchor_ns_ >= (sparing ? kSparingAnchorNs : stretch() * kAnchorNs);
  return due ? record(pending_) : DriverError{};
}

DriverError DeviceClock::record(Event& event) {
  event = take_event();
  last_record_ns_ = last_anchor_ns_ = now_ns();
  const DriverError error{"cuEventRecord", driver_.EventRecord(event, stream_)};
  if (error) free_.push_back(std::exchange(event, nullptr));
  return error;
}

DriverError DeviceClock::measure(Event event, int64_t& device_ns) {
  device_ns = kOriginNs;
  if (anchors_.empty()) return {};
  const DriverError error = distance(anchors_.back().event, event, device_ns);
  device_ns += anchors_.back().device_ns;
  return error;
}

DriverError DeviceClock::correlate() {
  ++burst_.ticks;
  while (burst_.attempts < kBrackets) {
    ++burst_.attempts;
    Event event = nullptr;
    if (const DriverError error = record(event)) return error;
    const int64_t before_ns = last_record_ns_;
    wait_until(*clock_, before_ns + wait_ns_);
    const int result = driver_.EventQuery(event);
    if (result == kNotReady) {
      // The one such answer of this tick. It serves as an anchor when it is complete.
      pending_ = event;
      wait_ns_ = std::min(wait_ns_ * 3 / 2, kMaxWaitNs);
      break;
    }
    const int64_t after_ns = now_ns();
    int64_t device_ns = 0;
    DriverError error{"cuEventQuery", result};
    if (!error) error = measure(event, device_ns);
    if (error || burst_.attempts < kBrackets) {
      free_.push_back(event);
    } else {
      anchors_.push_back({event, device_ns});
    }
    if (error) return error;
    wait_ns_ = std::max(wait_ns_ * 7 / 8, kMinWaitNs);
    bracket(device_ns, before_ns, after_ns);
  }
  if (burst_.attempts >= kBrackets || burst_.ticks >= kMaxBurstTicks) end_burst(now_ns());
  return {};
}

void DeviceClock::bracket(int64_t device_ns, int64_t before_ns, int64_t after_ns) {
  // The stamp may be a tick old, and the ends of the bracket are rounded.
  const int64_t half_ns = (after_ns - before_ns + 1) / 2 + std::max<int64_t>(tick_ns_, 1) + 1;
  if (!burst_.best || half_ns < burst_.best->uncertainty_ns)
    burst_.best = {device_ns, before_ns + (after_ns - before_ns) / 2, half_ns};
}

/// A point that is less certain than what follows from the last one says nothing new.
bool DeviceClock::tells_something(const Point& point) const {
  if (!last_point_) return true;
  const int64_t since_ns = point.run_ns - last_point_->run_ns;
  return since_ns > 0 && point.device_ns > last_point_->device_ns &&
         point.uncertainty_ns <= last_point_->uncertainty_ns + since_ns / kMaxDriftInverse;
}

void DeviceClock::end_burst(int64_t now) {
  const bool narrow = burst_.best && burst_.best->uncertainty_ns <= kNarrowNs;
  if (burst_.best && tells_something(*burst_.best)) {
    points_.push_back(*burst_.best);
    last_point_ = burst_.best;
  }
  burst_ = {};
  correlation_due_ns_ = now + correlation_interval_ns_;
  if (narrow) correlation_interval_ns_ = std::min(2 * correlation_interval_ns_, kMaxIntervalNs);
}

DriverError DeviceClock::distance(Event from, Event to, int64_t& ns) {
  float milliseconds = 0;
  DriverError error{"cuEventElapsedTime_v2", kNotReady};
  if (driver_.EventElapsedTime_v2 != nullptr)
    error.result = driver_.EventElapsedTime_v2(&milliseconds, from, to);
  // It may not know yet that they are complete.
  if (error.result == kNotReady)
    error = {"cuEventElapsedTime", driver_.EventElapsedTime(&milliseconds, from, to)};
  if (error) return error;
  const double exact_ns = static_cast<double>(milliseconds) * 1e6;
  ns = std::llround(exact_ns);
  if (std::abs(ns) < kExactNs) {
    if (ns != 0) {
      tick_ns_ = std::gcd(tick_ns_, ns);
      ++tick_samples_;
    }
  } else if (tick_samples_ >= kTickSamples && tick_ns_ <= kMaxTickNs) {
    ns = std::llround(exact_ns / static_cast<double>(tick_ns_)) * tick_ns_;
  }
  return {};
}

/// From the events as they were created and recorded, one right after the other. They are complete:
/// the first anchor was recorded behind them.
DriverError DeviceClock::learn_tick() {
  for (size_t i = 1; i <= 2 * kTickSamples && i < free_.size(); ++i) {
    int64_t ns = 0;
    if (const DriverError error = distance(free_[i - 1], free_[i], ns)) return error;
  }
  return {};
}

DriverError DeviceClock::time_of(Event event, std::optional<int64_t>& device_ns) {
  device_ns.reset();
  if (anchors_.empty()) return {};
  const Anchor* anchor = &anchors_.back();
  int64_t ns = 0;
  if (const DriverError error = distance(anchor->event, event, ns)) return error;
  if (std::abs(ns) > stretch() * kMaxDistanceNs) {
    anchor = &nearest_anchor(anchor->device_ns + ns);
    if (const DriverError error = distance(anchor->event, event, ns)) return error;
  }
  device_ns = anchor->device_ns + ns;
  return {};
}

void DeviceClock::adopt(Event& event, int64_t device_ns) {
  if (device_ns - anchors_.back().device_ns < stretch() * kAdoptedNs) return;
  anchors_.push_back({std::exchange(event, take_event()), device_ns});
  last_anchor_ns_ = now_ns();
}

/// How much farther apart than kAnchorNs anchors may be. Each distance between two of them is
/// rounded to the ticks, so the fewer there are the better, and a float tells longer ticks apart
/// over longer distances.
int64_t DeviceClock::stretch() const {
  constexpr int64_t kShortTickNs = 31;
  if (tick_samples_ < kTickSamples || tick_ns_ > kMaxTickNs) return 1;
  return static_cast<int64_t>(
      std::bit_floor(static_cast<uint64_t>(std::max(tick_ns_ / kShortTickNs, int64_t{1}))));
}

const DeviceClock::Anchor& DeviceClock::nearest_anchor(int64_t device_ns) const {
  const auto after = std::lower_bound(
      anchors_.begin(), anchors_.end(), device_ns,
      [](const Anchor& anchor, int64_t value) { return anchor.device_ns < value; });
  if (after == anchors_.end()) return anchors_.back();
  if (after == anchors_.begin()) return *after;
  const auto before = std::prev(after);
  return after->device_ns - device_ns < device_ns - before->device_ns ? *after : *before;
}

Event DeviceClock::take_event() {
  if (free_.empty()) {
    free_.push_back(anchors_.front().event);
    anchors_.pop_front();
  }
  const Event event = free_.back();
  free_.pop_back();
  return event;
}

std::vector<DeviceClock::Point> DeviceClock::take_points(bool final) {
  if (final && burst_.best) end_burst(now_ns());
  return std::exchange(points_, {});
}

}  // namespace pig::cuda
