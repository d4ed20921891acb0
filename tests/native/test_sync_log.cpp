// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/ticks.h"
#include "check.h"
#include "record/sync_log.h"

namespace {

using pig::SyncItem;
using pig::SyncLog;

/// The head of the SYNC_STATISTICS document and its rows.
struct Statistics {
  uint64_t items;
  uint64_t dropped;
  uint32_t intervals;
  uint32_t flags;
  std::vector<std::vector<uint64_t>> rows;  ///< site, count, priced, blocked_ns, bytes
  explicit Statistics(const std::vector<uint8_t>& document) {
    std::vector<uint64_t> words(document.size() / sizeof(uint64_t));
    std::memcpy(words.data(), document.data(), document.size());
    items = words.at(0);
    dropped = words.at(1);
    intervals = static_cast<uint32_t>(words.at(2));
    flags = static_cast<uint32_t>(words.at(2) >> 32);
    for (size_t at = 3 + 2 * intervals; at < words.size(); at += 5) {
      const auto begin = words.begin() + static_cast<std::ptrdiff_t>(at);
      rows.emplace_back(begin, begin + 5);
    }
  }
};

/// A clock from 0 on, whose ticks are nanoseconds.
struct TestClock {
  pig::Clock clock;
  TestClock() {
    pig::inject_tick_function([] { return uint64_t{0}; });
    clock.start();
  }
};

SyncItem wait(uint32_t site, int64_t begin_ns, int64_t duration_ns) {
  return {begin_ns, duration_ns, 4, site, 7, 3, 1};
}

void a_wait_is_taken_once_and_counted_once() {
  const TestClock test;
  SyncLog log;
  log.reset(&test.clock);
  log.watch(true, false);
  CHECK_EQ(log.add_site({10, 0, "a.py", "f"}).value(), 0u);
  CHECK_EQ(log.add_site({20, 1, "a.py", "g"}).value(), 1u);
  log.add(wait(1, 100, 30));
  log.add(wait(1, 200, 5));
  log.add(wait(0, 300, -1));
  const std::vector<SyncItem> items = log.take();
  CHECK_EQ(items.size(), 3u);
  CHECK_EQ(items[0].duration_ns, 30);
  CHECK_EQ(items[0].begin_ns, 100);
  CHECK_EQ(items[0].bytes, 4u);
  CHECK_EQ(items[0].site, 1u);
  CHECK_EQ(items[0].path, 7u);
  CHECK_EQ(items[0].step, 3u);
  CHECK_EQ(items[0].thread, 1u);
  CHECK_EQ(items[2].duration_ns, -1);  // missing is not zero
  CHECK(log.take().empty());
  const Statistics found(log.encode_statistics(3));
  CHECK_EQ(found.items, 3u);
  CHECK_EQ(found.dropped, 0u);
  CHECK_EQ(found.rows.size(), 2u);
  CHECK((found.rows[0] == std::vector<uint64_t>{0, 1, 0, 0, 4}));
  CHECK((found.rows[1] == std::vector<uint64_t>{1, 2, 2, 35, 8}));
}

void what_there_is_no_room_for_is_in_the_sums() {
  const TestClock test;
  SyncLog log;
  log.reset(&test.clock);
  log.watch(true, true);
  log.add_site({1, 0, "a.py", "f"});
  for (size_t i = 0; i < SyncLog::kMaxPending + 5; ++i) log.add(wait(0, 10, 2));
  CHECK_EQ(log.take().size(), SyncLog::kMaxPending);
  log.add(wait(0, 10, 2));  // there is room again
  CHECK_EQ(log.take().size(), 1u);
  const Statistics found(log.encode_statistics(0));
  CHECK_EQ(found.dropped, 5u);
  CHECK_EQ(found.flags, 3u);  // as if there were a device, on which nothing was placed
  log.place();
  CHECK_EQ(Statistics(log.encode_statistics(0)).flags, 1u);
  const uint64_t count = SyncLog::kMaxPending + 6;
  CHECK((found.rows[0] == std::vector<uint64_t>{0, count, count, 2 * count, 4 * count}));
}

void sites_are_bounded_and_outlast_a_recording() {
  const TestClock test;
  SyncLog log;
  log.reset(&test.clock);
  for (uint32_t line = 0; line < SyncLog::kMaxSites; ++line) {
    CHECK_EQ(log.add_site({line, 0, "a.py", "f"}).value(), line);
  }
  CHECK(!log.add_site({0, 0, "a.py", "f"}).has_value());
  log.add(wait(5, 1, 1));
  log.add(wait(SyncLog::kMaxSites, 1, 1));  // of another process
  CHECK_EQ(log.take().size(), 1u);
  log.add(wait(5, 1, 1));
  log.reset(&test.clock);
  CHECK(log.take().empty());
  CHECK_EQ(log.sites_since(5).size(), SyncLog::kMaxSites - 5);
  CHECK_EQ(log.sites_since(5)[0].line, 5u);
  log.watch(true, false);
  CHECK(Statistics(log.encode_statistics(0)).rows.empty());
}

void intervals_of_the_watch() {
  const TestClock test;
  SyncLog log;
  log.watch(true, false);  // before any recording: nothing
  CHECK(log.encode_statistics(0).empty());
  log.reset(&test.clock);
  CHECK(log.encode_statistics(0).empty());
  log.watch(false, false);  // it was not on
  CHECK(log.encode_statistics(0).empty());
  for (size_t i = 0; i < SyncLog::kMaxIntervals + 3; ++i) {
    log.watch(true, false);
    log.watch(true, true);  // it is on
    log.watch(false, false);
  }
  const Statistics found(log.encode_statistics(0));
  CHECK_EQ(found.intervals, SyncLog::kMaxIntervals);
  CHECK_EQ(found.flags, 0u);
}

}  // namespace

int main() {
  a_wait_is_taken_once_and_counted_once();
  what_there_is_no_room_for_is_in_the_sums();
  sites_are_bounded_and_outlast_a_recording();
  intervals_of_the_watch();
}
