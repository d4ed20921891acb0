// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/clock.h"
#include "base/ticks.h"
#include "check.h"
#include "hot/span.h"

namespace {

using pig::Clock;

uint64_t injected_now = 0;

void test_injected_ticks_are_nanoseconds() {
  pig::inject_tick_function([] { return injected_now; });
  injected_now = uint64_t{1} << 60;  // where the zero lies makes no difference
  const uint64_t zero = injected_now;
  Clock clock;
  clock.start();
  CHECK(pig::tick_kind == pig::TickKind::kInjected);
  CHECK_EQ(clock.frequency_hz(), 1e9);
  for (const int64_t ns : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{1'000'000'007},
                           (int64_t{1} << 52) - 1, int64_t{-1}, int64_t{-1'000'000'007}}) {
    injected_now = zero + static_cast<uint64_t>(ns);
    clock.discipline();
    CHECK_EQ(clock.to_ns(injected_now), ns);
    CHECK_EQ(clock.anchor().run_ns, ns);
  }
  pig::inject_tick_function(nullptr);
  CHECK(pig::read_ticks() != injected_now);  // the machine's again, before the next recording
}

void test_spans_keep_their_ends() {
  pig::inject_tick_function([] { return injected_now; });
  injected_now = 1000;
  Clock clock;
  clock.start();
  const auto convert = [&clock](uint64_t begin, uint64_t duration, uint64_t child) {
    return to_nanoseconds(clock, pig::RawSpan::pack(begin, duration, child, 0, 0, 1, 0));
  };
  const pig::NanosecondSpan span = convert(1100, 50, 20);
  CHECK_EQ(span.begin, 100);
  CHECK_EQ(span.end, 150);
  CHECK_EQ(span.self, 30);
  // Children that ended after their parent may have taken longer than it.
  CHECK_EQ(convert(1100, 50, 60).self, 0);
  pig::inject_tick_function(nullptr);
}

int64_t raw_now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

/// CLOCK_MONOTONIC_RAW less run time: it lies between the two. However long the thread was
/// interrupted between the readings, that only makes the bounds wider.
struct OffsetBounds {
  int64_t low_ns;
  int64_t high_ns;
};

OffsetBounds read_offset(const Clock& clock) {
  const int64_t before_ns = raw_now_ns();
  const uint64_t ticks = pig::read_ticks();
  const int64_t after_ns = raw_now_ns();
  const int64_t run_ns = clock.to_ns(ticks);
  return {before_ns - run_ns, after_ns - run_ns};
}

/// Long enough for some segments: they begin 20, 60, 140, 300 and 620 ms after the start.
constexpr int64_t kObservedNs = 700'000'000;

void test_machine_ticks() {
  Clock clock;
  clock.start();
  CHECK(pig::tick_kind != pig::TickKind::kInjected);

  struct Sample {
    uint64_t ticks;
    int64_t ns;
  };
  std::vector<Sample> samples;
  int64_t last_ns = std::numeric_limits<int64_t>::min();
  int64_t low_ns = std::numeric_limits<int64_t>::min();
  int64_t high_ns = std::numeric_limits<int64_t>::max();
  do {
    clock.discipline();
    for (int i = 0; i < 100; ++i) {
      const uint64_t ticks = pig::read_ticks();
      const int64_t ns = clock.to_ns(ticks);
      CHECK(ns >= last_ns);
      last_ns = ns;
      if (i == 0) samples.push_back({ticks, ns});
    }
    const OffsetBounds bounds = read_offset(clock);
    low_ns = std::max(low_ns, bounds.low_ns);
    high_ns = std::min(high_ns, bounds.high_ns);
  } while (last_ns < kObservedNs);

  for (const Sample& sample : samples) CHECK_EQ(clock.to_ns(sample.ticks), sample.ns);

  // If the two clocks agreed exactly, all bounds would have a point in common. The first rate may
  // be wrong by some parts in 100 000 for some milliseconds.
  constexpr int64_t kToleranceNs = 100'000;
  CHECK(low_ns - high_ns <= kToleranceNs);

  const int64_t before_ns = clock.to_ns(pig::read_ticks());
  const pig::ClockAnchor anchor = clock.anchor();
  const int64_t after_ns = clock.to_ns(pig::read_ticks());
  CHECK(before_ns <= anchor.run_ns && anchor.run_ns <= after_ns);
}

/// A recording after another starts at zero again, with the rate that is known by then.
void test_starts_again() {
  Clock clock;
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = pig::read_ticks();
    clock.start();
    const uint64_t after = pig::read_ticks();
    CHECK(clock.to_ns(before) <= 0);
    CHECK(clock.to_ns(after) >= 0);
  }
}

}  // namespace

int main() {
  test_injected_ticks_are_nanoseconds();
  test_spans_keep_their_ends();
  test_machine_ticks();
  test_starts_again();
}
