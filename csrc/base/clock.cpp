// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

namespace pig {
namespace {

constexpr int kBrackets = 20;
constexpr double kFirstIntervalNs = 20e6;
constexpr double kLongestIntervalNs = 60e9;
constexpr double kLeadNs = 5e6;  // a new segment starts this far in the future
constexpr int64_t kShortestBaselineNs = 5'000'000;

int64_t read_ns(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

struct Bracket {
  uint64_t ticks;
  int64_t raw_ns;
};

Bracket narrowest_bracket() {
  Bracket best{};
  uint64_t width = ~uint64_t{0};
  for (int i = 0; i < kBrackets; ++i) {
    const uint64_t before = read_ticks();
    const int64_t raw_ns = read_ns(CLOCK_MONOTONIC_RAW);
    const uint64_t after = read_ticks();
    if (after - before < width) {
      width = after - before;
      best = {before + width / 2, raw_ns};
    }
  }
  return best;
}

/// The first bracket of the process, by kind of clock. The time between it and a recording's start,
/// mostly the import of torch, gives the first slope for nothing.
struct Birth {
  TickKind kind;
  Bracket bracket;
};

Birth take_birth() {
  tick_kind = choose_tick_kind();
  return {tick_kind, narrowest_bracket()};
}

const Birth birth = take_birth();

}  // namespace

void Clock::start() {
  tick_kind = choose_tick_kind();
  exact_ = tick_kind == TickKind::kClockGettime || tick_kind == TickKind::kInjected;
  double ns_per_tick = 1.0;
  Bracket zero{};
  if (tick_kind == TickKind::kInjected) {
    zero = {read_ticks(), read_ns(CLOCK_MONOTONIC_RAW)};
  } else {
    zero = narrowest_bracket();
  }
  if (!exact_) {
    Bracket first = birth.kind == tick_kind ? birth.bracket : zero;
    while (zero.raw_ns - first.raw_ns < kShortestBaselineNs) {
      const timespec pause{0, kShortestBaselineNs};
      nanosleep(&pause, nullptr);
      zero = narrowest_bracket();
    }
    ns_per_tick = static_cast<double>(zero.raw_ns - first.raw_ns) /
                  static_cast<double>(zero.ticks - first.ticks);
  }
  segments_[0] = {zero.ticks, 0, ns_per_tick};
  raw_zero_ns_ = zero.raw_ns;
  last_ticks_ = zero.ticks;
  last_raw_ns_ = zero.raw_ns;
  interval_ns_ = kFirstIntervalNs;
  due_ticks_ = zero.ticks + static_cast<uint64_t>(interval_ns_ / ns_per_tick);
  count_.store(1, std::memory_order_release);
}

void Clock::discipline() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  if (exact_ || count == kCapacity || read_ticks() < due_ticks_) return;
  const Bracket now = narrowest_bracket();
  const double measured =
      static_cast<double>(now.raw_ns - last_raw_ns_) / static_cast<double>(now.ticks - last_ticks_);
  const double error_ns = static_cast<double>(now.raw_ns - raw_zero_ns_ - to_ns(now.ticks));
  interval_ns_ = interval_ns_ * 2 < kLongestIntervalNs ? interval_ns_ * 2 : kLongestIntervalNs;
  const double interval_ticks = interval_ns_ / measured;
  const uint64_t start = now.ticks + static_cast<uint64_t>(kLeadNs / measured);
  segments_[count] = {start, to_ns(start), measured + error_ns / interval_ticks};
  count_.store(count + 1, std::memory_order_release);
  last_ticks_ = now.ticks;
  last_raw_ns_ = now.raw_ns;
  due_ticks_ = now.ticks + static_cast<uint64_t>(interval_ticks);
}

ClockAnchor Clock::anchor() const {
  if (tick_kind == TickKind::kInjected) {
    const int64_t ns = to_ns(read_ticks());
    return {ns, read_ns(CLOCK_MONOTONIC), read_ns(CLOCK_MONOTONIC_RAW), read_ns(CLOCK_REALTIME)};
  }
  ClockAnchor best{};
  uint64_t width = ~uint64_t{0};
  for (int i = 0; i < kBrackets; ++i) {
    const uint64_t before = read_ticks();
    const int64_t monotonic_ns = read_ns(CLOCK_MONOTONIC);
    const int64_t raw_ns = read_ns(CLOCK_MONOTONIC_RAW);
    const int64_t realtime_ns = read_ns(CLOCK_REALTIME);
    const uint64_t after = read_ticks();
    if (after - before < width) {
      width = after - before;
      best = {to_ns(before + width / 2), monotonic_ns, raw_ns, realtime_ns};
    }
  }
  return best;
}

double Clock::frequency_hz() const {
  return 1e9 / segments_[count_.load(std::memory_order_acquire) - 1].ns_per_tick;
}

}  // namespace pig
