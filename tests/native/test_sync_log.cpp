// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstring>
#include <vector>

#include "check.h"
#include "drained_part.h"
#include "record/sync_log.h"

namespace {

using pig::SyncItem;
using pig::SyncLog;
using Log = DrainedPart<SyncLog>;

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

SyncItem wait(uint32_t site, int64_t begin_ns, int64_t duration_ns) {
  return {begin_ns, duration_ns, 4, site, 7, 3, 1};
}

void a_wait_is_taken_once_and_counted_once() {
  Log log;
  log.part.watch(true, false);
  CHECK_EQ(log.part.add_site({10, 0, "a.py", "f"}).value(), 0u);
  CHECK_EQ(log.part.add_site({20, 1, "a.py", "g"}).value(), 1u);
  log.part.add(wait(1, 100, 30));
  log.part.add(wait(1, 200, 5));
  log.part.add(wait(0, 300, -1));
  const std::vector<SyncItem> items = log.take<SyncItem>();
  CHECK_EQ(items.size(), 3u);
  CHECK_EQ(items[0].duration_ns, 30);
  CHECK_EQ(items[0].begin_ns, 100);
  CHECK_EQ(items[0].bytes, 4u);
  CHECK_EQ(items[0].site, 1u);
  CHECK_EQ(items[0].path, 7u);
  CHECK_EQ(items[0].step, 3u);
  CHECK_EQ(items[0].thread, 1u);
  CHECK_EQ(items[2].duration_ns, -1);  // missing is not zero
  CHECK(log.take<SyncItem>().empty());
  const Statistics found(log.part.encode_statistics(3));
  CHECK_EQ(found.items, 3u);
  CHECK_EQ(found.dropped, 0u);
  CHECK_EQ(found.rows.size(), 2u);
  CHECK((found.rows[0] == std::vector<uint64_t>{0, 1, 0, 0, 4}));
  CHECK((found.rows[1] == std::vector<uint64_t>{1, 2, 2, 35, 8}));
}

void what_there_is_no_room_for_is_in_the_sums() {
  Log log;
  log.part.watch(true, true);
  log.part.add_site({1, 0, "a.py", "f"});
  for (size_t i = 0; i < SyncLog::kMaxPending + 5; ++i) log.part.add(wait(0, 10, 2));
  CHECK_EQ(log.take<SyncItem>().size(), SyncLog::kMaxPending);
  log.part.add(wait(0, 10, 2));  // there is room again
  CHECK_EQ(log.take<SyncItem>().size(), 1u);
  const Statistics found(log.part.encode_statistics(0));
  CHECK_EQ(found.dropped, 5u);
  CHECK_EQ(found.flags, 3u);  // as if there were a device, on which nothing was placed
  log.part.place();
  CHECK_EQ(Statistics(log.part.encode_statistics(0)).flags, 1u);
  const uint64_t count = SyncLog::kMaxPending + 6;
  CHECK((found.rows[0] == std::vector<uint64_t>{0, count, count, 2 * count, 4 * count}));
}

void sites_are_bounded_and_outlast_a_recording() {
  Log log;
  for (uint32_t line = 0; line < SyncLog::kMaxSites; ++line) {
    CHECK_EQ(log.part.add_site({line, 0, "a.py", "f"}).value(), line);
  }
  CHECK(!log.part.add_site({0, 0, "a.py", "f"}).has_value());
  log.part.add(wait(5, 1, 1));
  log.part.add(wait(SyncLog::kMaxSites, 1, 1));  // of another process
  CHECK_EQ(log.take<SyncItem>().size(), 1u);
  log.part.add(wait(5, 1, 1));
  log.reset();
  CHECK(log.take<SyncItem>().empty());
  CHECK_EQ(log.log.entries(pig::BlockType::kSyncSites), SyncLog::kMaxSites);
  log.part.watch(true, false);
  CHECK(Statistics(log.part.encode_statistics(0)).rows.empty());
}

void intervals_of_the_watch() {
  SyncLog unused;
  unused.watch(true, false);  // before any recording: nothing
  CHECK(unused.encode_statistics(0).empty());
  Log log;
  CHECK(log.part.encode_statistics(0).empty());
  log.part.watch(false, false);  // it was not on
  CHECK(log.part.encode_statistics(0).empty());
  for (size_t i = 0; i < SyncLog::kMaxIntervals + 3; ++i) {
    log.part.watch(true, false);
    log.part.watch(true, true);  // it is on
    log.part.watch(false, false);
  }
  const Statistics found(log.part.encode_statistics(0));
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
