// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/recent_median.h"

namespace pig {

/// What has gone by since a thread's counters were last read.
struct SinceReading {
  uint32_t steps = 0;      ///< that were not read, without the open one
  int64_t outside_ns = 0;  ///< the time between steps
  bool has_long = false;   ///< whether a step took long: they have grown by anything
};

/// How much a counter of a thread usually grows in a step, and between two steps.
///
/// Counters of the kernel only grow, and to read them in each step costs too much. At the end of a
/// step that took long they are read in any case: what they have grown by since the last reading is
/// that step's, but for what steps and the times between them usually add. All are recent medians.
class UsualGrowth {
 public:
  /// In a step that was read where it began and where it ended.
  void add_step(int64_t growth) { steps_.add(static_cast<uint64_t>(std::max(growth, int64_t{0}))); }
  /// Since the last reading, where a step begins.
  void add_gaps(int64_t growth, const SinceReading& since) {
    const int64_t of_gaps = growth - since.steps * static_cast<int64_t>(steps_.value());
    gaps_.add(static_cast<uint64_t>(std::max(of_gaps, int64_t{0})) / (since.steps + 1));
  }
  /// Since the last reading, without the open step.
  int64_t before_step(const SinceReading& since) const {
    return since.steps * static_cast<int64_t>(steps_.value()) +
           (since.steps + 1) * static_cast<int64_t>(gaps_.value());
  }

 private:
  RecentMedian steps_, gaps_;
};

/// The times between steps: in longer ones than usual, counters may have grown by anything.
class UsualGaps {
 public:
  void add(const SinceReading& since) { outside_.add_gaps(since.outside_ns, since); }
  /// Whether what counters have grown by since the last reading says something of a step that took
  /// so long.
  bool tell_of(const SinceReading& since, int64_t duration_ns) const {
    return !since.has_long &&
           since.outside_ns <= std::max(duration_ns / kMostOfStep, most_ns(since));
  }
  /// Whether to read the counters again behind a time between steps, so that they do.
  bool is_rare(int64_t gap_ns) const { return gap_ns > std::max(kRareNs, most_ns({})); }

 private:
  static constexpr int64_t kMostOfStep = 20;
  static constexpr int64_t kMostUsual = 2;
  /// So long that a reading costs less than a thousandth of it.
  static constexpr int64_t kRareNs = 20'000'000;

  int64_t most_ns(const SinceReading& since) const {
    return kMostUsual * outside_.before_step(since);
  }

  UsualGrowth outside_;
};

}  // namespace pig
