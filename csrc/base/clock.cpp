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

template <typename Reading>
struct Bracket {
  uint64_t ticks;
  Reading reading;
};

/// What `read` says, at the tick in the middle of the narrowest of some brackets around it. An
/// injected clock is read only once: it may move with each reading.
template <typename Read>
auto narrowest_bracket(Read read) {
  if (tick_kind == TickKind::kInjected) return Bracket<decltype(read())>{read_ticks(), read()};
  Bracket<decltype(read())> best{};
  uint64_t width = ~uint64_t{0};
  for (int i = 0; i < kBrackets; ++i) {
    const uint64_t before = read_ticks();
    const auto reading = read();
    const uint64_t after = read_ticks();
    if (after - before < width) {
      width = after - before;
      best = {before + width / 2, reading};
    }
  }
  return best;
}

int64_t read_raw_ns() { return read_clock_ns(CLOCK_MONOTONIC_RAW); }

/// The first bracket of the process, by kind of clock. The time between it and a recording's start,
/// mostly the import of torch, gives the first slope for nothing.
struct Birth {
  TickKind kind;
  Bracket<int64_t> bracket;
};

const Birth birth = [] {
  tick_kind = choose_tick_kind();
  return Birth{tick_kind, narrowest_bracket(read_raw_ns)};
}();

}  // namespace

void Clock::start() {
  tick_kind = choose_tick_kind();
  exact_ = tick_kind == TickKind::kClockGettime || tick_kind == TickKind::kInjected;
  double ns_per_tick = 1.0;
  auto zero = narrowest_bracket(read_raw_ns);
  if (!exact_) {
    const auto first = birth.kind == tick_kind ? birth.bracket : zero;
    while (zero.reading - first.reading < kShortestBaselineNs) {
      const timespec pause{0, kShortestBaselineNs};
      nanosleep(&pause, nullptr);
      zero = narrowest_bracket(read_raw_ns);
    }
    ns_per_tick = static_cast<double>(zero.reading - first.reading) /
                  static_cast<double>(zero.ticks - first.ticks);
  }
  segments_[0] = {zero.ticks, 0, ns_per_tick};
  raw_zero_ns_ = zero.reading;
  last_ticks_ = zero.ticks;
  last_raw_ns_ = zero.reading;
  interval_ns_ = kFirstIntervalNs;
  due_ticks_ = zero.ticks + static_cast<uint64_t>(interval_ns_ / ns_per_tick);
  count_.store(1, std::memory_order_release);
}

void Clock::discipline() {
  const uint32_t count = count_.load(std::memory_order_relaxed);
  if (exact_ || count == kCapacity || read_ticks() < due_ticks_) return;
  const auto now = narrowest_bracket(read_raw_ns);
  const double measured = static_cast<double>(now.reading - last_raw_ns_) /
                          static_cast<double>(now.ticks - last_ticks_);
  const double error_ns = static_cast<double>(now.reading - raw_zero_ns_ - to_ns(now.ticks));
  interval_ns_ = interval_ns_ * 2 < kLongestIntervalNs ? interval_ns_ * 2 : kLongestIntervalNs;
  const double interval_ticks = interval_ns_ / measured;
  const uint64_t start = now.ticks + static_cast<uint64_t>(kLeadNs / measured);
  segments_[count] = {start, to_ns(start), measured + error_ns / interval_ticks};
  count_.store(count + 1, std::memory_order_release);
  last_ticks_ = now.ticks;
  last_raw_ns_ = now.reading;
  due_ticks_ = now.ticks + static_cast<uint64_t>(interval_ticks);
}

ClockAnchor Clock::anchor() const {
  const auto [ticks, anchor] = narrowest_bracket([] {
    const int64_t monotonic_ns = read_clock_ns(CLOCK_MONOTONIC);
    const int64_t monotonic_raw_ns = read_raw_ns();
    return ClockAnchor{0, monotonic_ns, monotonic_raw_ns, read_clock_ns(CLOCK_REALTIME)};
  });
  return {to_ns(ticks), anchor.monotonic_ns, anchor.monotonic_raw_ns, anchor.realtime_ns};
}

double Clock::frequency_hz() const {
  return 1e9 / segments_[count_.load(std::memory_order_acquire) - 1].ns_per_tick;
}

}  // namespace pig
