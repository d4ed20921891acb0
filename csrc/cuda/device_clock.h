// SPDX-License-Identifier: Apache-2.0
//
// One device's clock, read through events.
//
// Two events give the time between them as a float of milliseconds: exact to the nanosecond over
// some milliseconds, to 30 ns over half a second, to a quarter of a millisecond after an hour. So
// time is a chain: anchors, never far apart, whose distances add up as integers. The time of any
// other event is that of an anchor near it plus one short distance. Where the distance is too long
// for the float to be exact, it is rounded to the ticks of the device's counter, whose length is
// the greatest common divisor of the short ones. While the program's own events come, they are the
// anchors (`adopt`); in between, events on a stream of our own.
//
// Correlation with the run's clock: an event is recorded on the idle stream and found complete, so
// its time lies between two readings of the host's counter. Of some 20 such brackets the narrowest
// becomes a point (device time, run time, half the width). To find it complete there is one query
// after a short wait, which is learnt from the outcomes: the harvester never waits for an answer.
//
// The streams of a process share some hardware queues, 8 unless CUDA_DEVICE_MAX_CONNECTIONS says
// otherwise. Once our own stream may share one with a stream of the program, each record on it is a
// dependency between streams that have nothing to do with each other. Then there are an anchor
// every ten seconds and a correlation at the begin and the end, and none besides.
//
// Used by the holder of the device lock, with the device's context current.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "cuda/driver.h"

namespace pig::cuda {

class DeviceClock {
 public:
  /// At device_ns, on the device's clock, the run's clock read run_ns, give or take uncertainty_ns.
  struct Point {
    int64_t device_ns;
    int64_t run_ns;
    int64_t uncertainty_ns;
  };

  explicit DeviceClock(const Driver& driver) : driver_(driver) {}

  /// Creates the stream and the events, and records each if `record`. Once.
  DriverError create(bool record);
  DriverError make_event(Event& event, bool record) const;
  Stream stream() const { return stream_; }

  /// Begins a new chain, and forgets the correlation.
  void restart(const Clock& clock);

  /// What is due: finds the last anchor complete, records a further one, correlates. At most one
  /// query says "not ready".
  /// sparing: as little as possible is recorded, because streams share hardware queues.
  DriverError tick(bool sparing, bool may_correlate);

  /// Whether the next tick would correlate, if it may.
  bool correlation_due(bool sparing) const {
    // Asked for (0) in any case: at the begin and the end.
    return correlation_due_ns_ == 0 || (!sparing && now_ns() >= correlation_due_ns_);
  }
  /// Anew, where one was under way for long.
  void correlate_soon() {
    correlation_due_ns_ = 0;
    burst_ = {};
  }

  /// The time of a completed event, or nothing while there is no anchor yet.
  DriverError time_of(Event event, std::optional<int64_t>& device_ns);
  /// Makes a completed event an anchor where the last one is old, and gives another event for it.
  void adopt(Event& event, int64_t device_ns);

  /// Points made since the last call. `final`: also the best that a correlation under way has.
  std::vector<Point> take_points(bool final);

 private:
  struct Anchor {
    Event event;
    int64_t device_ns;
  };
  struct Burst {
    uint32_t attempts = 0;
    uint32_t ticks = 0;
    std::optional<Point> best;
  };

  /// Records an event, if there is no error.
  DriverError record(Event& event);
  /// The time of an event that completed just now, by the newest anchor.
  DriverError measure(Event event, int64_t& device_ns);
  DriverError correlate();
  void bracket(int64_t device_ns, int64_t before_ns, int64_t after_ns);
  bool tells_something(const Point& point) const;
  void end_burst(int64_t now_ns);
  DriverError distance(Event from, Event to, int64_t& ns);
  DriverError learn_tick();
  int64_t stretch() const;
  const Anchor& nearest_anchor(int64_t device_ns) const;
  Event take_event();
  int64_t now_ns() const { return clock_->to_ns(read_ticks()); }

  const Driver& driver_;
  const Clock* clock_ = nullptr;
  Stream stream_ = nullptr;
  std::vector<Event> free_;
  std::deque<Anchor> anchors_;  ///< the newest last
  Event pending_ = nullptr;     ///< recorded, not yet known to be complete
  int64_t last_record_ns_ = 0;
  int64_t last_anchor_ns_ = 0;    ///< on the run's clock: when it was recorded, or adopted
  bool events_recorded_ = false;  ///< all of them, when they were made

  int64_t tick_ns_ = 0;  ///< divisor of all short distances so far
  uint32_t tick_samples_ = 0;

  int64_t correlation_due_ns_ = 0;
  int64_t correlation_interval_ns_ = 0;
  int64_t wait_ns_ = 0;
  Burst burst_;
  std::vector<Point> points_;
  std::optional<Point> last_point_;
};

}  // namespace pig::cuda
