// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "log/items.h"

namespace pig {

/// The waits of one recording, on their way to the log, and their sums by site, which lose nothing.
/// Recorded under the GIL by threads that have just waited for a device: a mutex is cheap enough.
/// The table of sites belongs to the process and outlasts recordings.
class SyncLog {
 public:
  static constexpr uint32_t kMaxSites = 4096;
  static constexpr size_t kMaxPending = 32768;
  static constexpr size_t kMaxIntervals = 64;

  struct Event {
    uint64_t begin_ticks;
    uint64_t end_ticks;
    bool priced;
    uint64_t bytes;
    uint32_t site;
    uint32_t path;
    uint32_t step;
    uint32_t thread;
  };

  /// Forgets the events of the last recording.
  void reset(const Clock* clock);

  /// The number of a site; nothing when the table is full.
  std::optional<uint32_t> add_site(SyncSite site);
  void add(const Event& event);
  /// From now on, or no longer, every wait that can be seen is recorded.
  void watch(bool on, bool as_if);
  /// Whether the watch began or ended since the last call: a reader takes a run whose file does not
  /// say that it was watched for one that was not, so that can't wait for the next statistics.
  bool take_watch_change();

  /// The events since the last call.
  std::vector<SyncItem> take();
  std::vector<SyncSite> sites_since(size_t from) const;
  /// The SYNC_STATISTICS document, or empty where the watch was never on. `appended`: the events
  /// that are in the log.
  std::vector<uint8_t> encode_statistics(uint64_t appended) const;

 private:
  struct Totals {
    uint64_t count = 0;
    uint64_t priced = 0;
    uint64_t blocked_ns = 0;
    uint64_t bytes = 0;
  };

  int64_t duration_ns(const Event& event) const;
  void count(const Event& event);

  mutable std::mutex mutex_;
  const Clock* clock_ = nullptr;
  std::vector<SyncSite> sites_;
  std::vector<Totals> totals_;  ///< by site, of the events that were taken or dropped
  std::vector<Event> pending_;
  uint64_t dropped_ = 0;
  bool is_on_ = false;
  bool as_if_ = false;
  bool watch_changed_ = false;
  std::vector<std::pair<int64_t, int64_t>> intervals_;
};

}  // namespace pig
