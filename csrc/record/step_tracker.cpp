// SPDX-License-Identifier: Apache-2.0
#include "record/step_tracker.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "hot/active_recording.h"

namespace pig {

void StepTracker::reset(const Clock* clock, DropCounters* drops, bool published) {
  const std::lock_guard lock(mutex_);
  clock_ = clock;
  drops_ = drops;
  published_ = published;
  open_.reset();
  next_ = 0;
  pending_.clear();
  pending_dropped_.clear();
  dropped_.clear();
  totals_ = {};
  undecided_.store(kNoStep, std::memory_order_relaxed);
  dropped_below_.store(0, std::memory_order_relaxed);
  publish(kNoOpenStep);
}

void StepTracker::publish(uint64_t step) {
  if (published_) open_step.store(step, std::memory_order_release);
}

std::optional<uint32_t> StepTracker::begin(uint32_t thread) {
  const std::lock_guard lock(mutex_);
  if (open_ || next_ == kNoStep) return std::nullopt;
  open_ = {next_++, thread, read_ticks(), 0, 0};
  undecided_.store(open_->serial, std::memory_order_release);
  publish(static_cast<uint64_t>(thread) << 32 | open_->serial);
  return open_->serial;
}

void StepTracker::close() {
  undecided_.store(kNoStep, std::memory_order_release);
  publish(kNoOpenStep);
  open_.reset();
}

void StepTracker::add_item(uint32_t serial, double samples) {
  const std::lock_guard lock(mutex_);
  if (!is_open(serial)) return;
  open_->samples += samples;
  ++open_->items;
  undecided_.store(kNoStep, std::memory_order_release);
}

void StepTracker::mark(uint32_t serial) {
  const uint64_t now = read_ticks();
  const std::lock_guard lock(mutex_);
  if (is_open(serial)) open_->mark_ticks = now;
}

void StepTracker::end(uint32_t serial, bool complete, bool at_mark) {
  uint64_t now = read_ticks();
  const std::lock_guard lock(mutex_);
  if (!is_open(serial)) return;
  if (at_mark && open_->mark_ticks != 0) now = open_->mark_ticks;
  const double samples =
      open_->items != 0 ? open_->samples : std::numeric_limits<double>::quiet_NaN();
  const int64_t begin_ns = clock_->to_ns(open_->begin_ticks);
  const int64_t end_ns = clock_->to_ns(now);
  totals_.add(static_cast<uint64_t>(end_ns - begin_ns), samples, open_->items, complete);
  if (pending_.size() < kMaxPending) {
    pending_.push_back(
        {serial, open_->thread, begin_ns, end_ns, samples, open_->items, complete ? 1u : 0u});
  } else {
    drops_->add(Drop::kStepHistory);
  }
  close();
}

void StepTracker::drop(uint32_t serial) {
  const std::lock_guard lock(mutex_);
  if (!is_open(serial)) return;
  if (dropped_.size() < kMaxDropped) {
    dropped_.push_back(serial);
    pending_dropped_.push_back(serial);
    dropped_below_.store(serial + 1, std::memory_order_release);
  }
  close();
}

bool StepTracker::was_dropped(uint32_t serial) const {
  const std::lock_guard lock(mutex_);
  return std::binary_search(dropped_.begin(), dropped_.end(), serial);
}

void StepTracker::end_open() {
  if (const std::optional<Open> step = open()) end(step->serial, false);
}

StepTracker::Pending StepTracker::take(std::vector<uint8_t>& totals) {
  const std::lock_guard lock(mutex_);
  totals_.encode(totals);
  return {std::exchange(pending_, {}), std::exchange(pending_dropped_, {}), open_};
}

std::optional<StepTracker::Open> StepTracker::open() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

int64_t StepTracker::index_of(uint32_t serial) const {
  const std::lock_guard lock(mutex_);
  const auto below = std::lower_bound(dropped_.begin(), dropped_.end(), serial);
  return static_cast<int64_t>(serial) - (below - dropped_.begin());
}

std::vector<uint32_t> StepTracker::dropped() const {
  const std::lock_guard lock(mutex_);
  return dropped_;
}

}  // namespace pig
