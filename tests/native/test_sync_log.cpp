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
  uint32_t intervals;
  uint32_t flags;
  std::vector<std::vector<uint64_t>> rows;  ///< site, count, priced, blocked_ns, bytes
  explicit Statistics(const std::vector<uint8_t>& document) {
    std::vector<uint64_t> words(document.size() / sizeof(uint64_t));
    std::memcpy(words.data(), document.data(), document.size());
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
  sites_are_bounded_and_outlast_a_recording();
  intervals_of_the_watch();
}
