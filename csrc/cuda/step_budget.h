// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <mutex>

#include "base/drawn_step.h"
#include "base/recent_median.h"
#include "base/threads.h"

namespace pig::cuda {

/// Which steps are timed on the device: one of every k, so that the driver calls of a timed step
/// cost at most `budget` of the time of k steps. Which of the k is drawn by chance. Cost and step
/// time are medians of the last steps, so that one slow step (a compilation, a checkpoint) does not
/// count for many. The first steps are timed all: there is nothing yet to go by.
class StepBudget {
 public:
  /// budget: share of the step time; infinite: every step is timed.
  void reset(double budget) {
    const std::lock_guard lock(lock_);
    budget_ = budget;
    every_.store(1, std::memory_order_relaxed);
    typical_ns_.store(0, std::memory_order_relaxed);
    drawn_.reset();
    timed_ = false;
    durations_ns_ = {};
    costs_ns_ = {};
  }

  /// A step begins. Returns whether to time it.
  bool begin_step() {
    const std::lock_guard lock(lock_);
    const uint32_t every = every_.load(std::memory_order_relaxed);
    // A block that was far too long, as the first steps were unlike the others, is not waited for.
    if (drawn_.is_over() || every <= drawn_.steps() / 2) drawn_.begin_block(every);
    timed_ = drawn_.is_drawn();
    drawn_.advance();
    return timed_;
  }

  /// It has ended; `cost_ns` is what the driver calls in it cost.
  void end_step(uint64_t duration_ns, uint64_t cost_ns) {
    const std::lock_guard lock(lock_);
    durations_ns_.add(duration_ns);
    typical_ns_.store(durations_ns_.value(), std::memory_order_relaxed);
    // Also after one that was not timed: a first step that was short, or costly, must not decide
    // for the hundreds after it.
    if (timed_) costs_ns_.add(cost_ns);
    const double allowed_ns = budget_ * static_cast<double>(typical_ns_);
    const double every = std::ceil(static_cast<double>(costs_ns_.value()) / allowed_ns);
    // With a step of no time at all the quotient is no number.
    every_.store(every >= 1 ? static_cast<uint32_t>(std::min(every, kMaxEvery)) : 1,
                 std::memory_order_relaxed);
  }

  /// It was none. The turn that it had is the next one's, or an epoch could end in the same unlucky
  /// place each time.
  void drop_step() {
    const std::lock_guard lock(lock_);
    drawn_.go_back();
  }

  uint32_t every() const { return every_.load(std::memory_order_relaxed); }
  /// What the last steps took; 0 before the first.
  uint64_t typical_ns() const { return typical_ns_.load(std::memory_order_relaxed); }

 private:
  static constexpr double kMaxEvery = 100'000;

  SpinLock lock_;
  double budget_ = 0;
  std::atomic<uint32_t> every_{1};
  std::atomic<uint64_t> typical_ns_{0};
  DrawnStep drawn_;
  bool timed_ = false;
  RecentMedian durations_ns_;
  RecentMedian costs_ns_;
};

}  // namespace pig::cuda
