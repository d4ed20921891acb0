// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/ticks.h"

namespace pig {

struct ClockAnchor {
  int64_t run_ns;
  int64_t monotonic_ns;
  int64_t monotonic_raw_ns;
  int64_t realtime_ns;
};

/// Converts ticks to nanoseconds since the run began.
///
/// The conversion is a continuous, piecewise linear function that is only ever extended: the same
/// tick gives the same nanosecond whenever and by whichever thread it is converted, although the
/// rate is known better and better. Each new segment starts a little in the future, so no tick that
/// was converted already lies in it. Its slope is chosen to meet CLOCK_MONOTONIC_RAW at the end of
/// the next interval. Intervals double from 20 ms to one minute: the error of a bracket, some 20
/// ns, is spread over ever longer baselines, and 4096 segments last for days.
///
/// One thread extends (the holder of the harvest lock); any thread converts.
class Clock {
 public:
  /// Before its start all ticks are at 0: a forked child has hooks of its parent's recording, but
  /// none of its own.
  Clock() { segments_[0] = {}; }

  /// Chooses the tick source and makes now the zero. May sleep for some milliseconds to learn the
  /// rate when the process has only just begun.
  void start();

  int64_t to_ns(uint64_t ticks) const {
    uint32_t last = count_.load(std::memory_order_acquire) - 1;
    while (last > 0 && ticks < segments_[last].ticks) --last;
    const Segment& segment = segments_[last];
    const double delta =
        static_cast<double>(static_cast<int64_t>(ticks - segment.ticks)) * segment.ns_per_tick;
    return segment.ns + static_cast<int64_t>(delta < 0 ? delta - 0.5 : delta + 0.5);
  }

  /// Extends the fit when it is due. Costs a comparison otherwise.
  void discipline();

  ClockAnchor anchor() const;

  double frequency_hz() const;

 private:
  struct Segment {
    uint64_t ticks;
    int64_t ns;
    double ns_per_tick;
  };
  static constexpr uint32_t kCapacity = 4096;

  std::array<Segment, kCapacity> segments_;
  std::atomic<uint32_t> count_{1};
  bool exact_ = false;  ///< ticks are nanoseconds: nothing to fit
  int64_t raw_zero_ns_ = 0;
  uint64_t last_ticks_ = 0;
  int64_t last_raw_ns_ = 0;
  uint64_t due_ticks_ = 0;
  double interval_ns_ = 0;
};

}  // namespace pig
