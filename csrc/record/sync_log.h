// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "record/part.h"

namespace pig {

/// The waits of one recording, on their way to the log, and their sums by site, which lose nothing.
/// Recorded under the GIL by threads that have just waited for a device: a mutex is cheap enough.
/// The table of sites belongs to the process and outlasts recordings.
class SyncLog final : public Part {
 public:
  static constexpr uint32_t kMaxSites = 4096;
  static constexpr size_t kMaxPending = 32768;
  static constexpr size_t kMaxIntervals = 64;

  void reset(const Session& session) override {
    const std::lock_guard lock(mutex_);
    clock_ = &session.clock;
    totals_.assign(sites_.size(), {});
    pending_.clear();
    taken_.clear();
    dropped_ = 0;
    is_on_ = as_if_ = is_placed_ = watch_changed_ = false;
    intervals_.clear();
  }

  /// The number of a site; nothing when the table is full.
  std::optional<uint32_t> add_site(SyncSite site) {
    const std::lock_guard lock(mutex_);
    if (sites_.size() == kMaxSites) return std::nullopt;
    sites_.push_back(std::move(site));
    totals_.emplace_back();
    note_change();
    return static_cast<uint32_t>(sites_.size() - 1);
  }

  void add(const SyncItem& sync) {
    const std::lock_guard lock(mutex_);
    if (sync.site >= sites_.size()) return;  // a site of the process that forked this one
    note_change();
    if (pending_.size() < kMaxPending) {
      pending_.push_back(sync);
    } else {
      ++dropped_;
      count(sync);
    }
  }

  /// From now on, or no longer, every wait that can be seen is recorded.
  void watch(bool on, bool as_if) {
    const uint64_t now = read_ticks();
    const std::lock_guard lock(mutex_);
    if (clock_ == nullptr || on == is_on_) return;
    is_on_ = on;
    watch_changed_ = true;
    note_change();
    if (on) {
      as_if_ = as_if;
      if (intervals_.size() < kMaxIntervals) intervals_.emplace_back(clock_->to_ns(now), -1);
    } else if (intervals_.back().second < 0) {
      intervals_.back().second = clock_->to_ns(now);
    }
  }

  /// Of a watch as if there were a device: something was placed on it.
  void place() {
    const std::lock_guard lock(mutex_);
    is_placed_ = true;
    note_change();
  }

  void take(Harvest&) override {
    const std::lock_guard lock(mutex_);
    for (const SyncItem& sync : pending_) count(sync);
    taken_ = std::exchange(pending_, {});
  }
  void drain(Harvest& harvest) override {
    write_copy(harvest.log, Copy::kTables);
    harvest.log.append(taken_);
  }
  void write_copy(RunLog& log, Copy) override {
    for (const SyncSite& site : sites_since(log.entries(BlockType::kSyncSites)))
      log.append_entry(BlockType::kSyncSites, site.line, site.kind, site.file, site.function);
  }

  /// A reader takes a run whose file does not say that it was watched for one that was not, so a
  /// change of that can't wait.
  void write_statistics(RunLog& log, bool is_due) override {
    if (!take_watch_change() && !is_due) return;
    const std::vector<uint8_t> document = encode_statistics(log.items(BlockType::kSyncs));
    if (!document.empty()) log.write_document(BlockType::kSyncStatistics, document);
  }

  /// The SYNC_STATISTICS document, or empty where the watch was never on. `appended`: the waits
  /// that are in the log.
  std::vector<uint8_t> encode_statistics(uint64_t appended) const {
    const std::lock_guard lock(mutex_);
    if (intervals_.empty()) return {};
    const uint64_t flags = as_if_ ? kAsIf | (is_placed_ ? 0 : kNothingPlaced) : 0;
    std::vector<uint64_t> words{appended, dropped_,
                                flags << 32 | static_cast<uint32_t>(intervals_.size())};
    for (const auto& [begin_ns, end_ns] : intervals_) {
      words.push_back(static_cast<uint64_t>(begin_ns));
      words.push_back(static_cast<uint64_t>(end_ns));
    }
    for (uint32_t site = 0; site < totals_.size(); ++site) {
      const Totals& totals = totals_[site];
      if (totals.count == 0) continue;
      words.insert(words.end(),
                   {site, totals.count, totals.priced, totals.blocked_ns, totals.bytes});
    }
    const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
    return {bytes, bytes + words.size() * sizeof(uint64_t)};
  }

 private:
  static constexpr uint64_t kAsIf = 1;
  static constexpr uint64_t kNothingPlaced = 2;

  struct Totals {
    uint64_t count = 0;
    uint64_t priced = 0;
    uint64_t blocked_ns = 0;
    uint64_t bytes = 0;
  };

  bool take_watch_change() {
    const std::lock_guard lock(mutex_);
    return std::exchange(watch_changed_, false);
  }

  std::vector<SyncSite> sites_since(size_t from) const {
    const std::lock_guard lock(mutex_);
    return {sites_.begin() + static_cast<std::ptrdiff_t>(from), sites_.end()};
  }

  void count(const SyncItem& sync) {
    Totals& totals = totals_[sync.site];
    ++totals.count;
    totals.bytes += sync.bytes;
    if (sync.duration_ns < 0) return;
    ++totals.priced;
    totals.blocked_ns += static_cast<uint64_t>(sync.duration_ns);
  }

  mutable std::mutex mutex_;
  const Clock* clock_ = nullptr;
  std::vector<SyncSite> sites_;
  std::vector<Totals> totals_;  ///< by site, of the waits that were taken or dropped
  std::vector<SyncItem> pending_;
  std::vector<SyncItem> taken_;  ///< at this harvest
  uint64_t dropped_ = 0;
  bool is_on_ = false;
  bool as_if_ = false;
  bool is_placed_ = false;
  bool watch_changed_ = false;
  std::vector<std::pair<int64_t, int64_t>> intervals_;
};

}  // namespace pig
