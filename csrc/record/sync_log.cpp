// SPDX-License-Identifier: Apache-2.0
#include "record/sync_log.h"

#include <utility>

namespace pig {
void SyncLog::reset(const Clock* clock) {
  const std::lock_guard lock(mutex_);
  clock_ = clock;
  totals_.assign(sites_.size(), {});
  pending_.clear();
  dropped_ = 0;
  is_on_ = as_if_ = watch_changed_ = false;
  intervals_.clear();
}

std::optional<uint32_t> SyncLog::add_site(SyncSite site) {
  const std::lock_guard lock(mutex_);
  if (sites_.size() == kMaxSites) return std::nullopt;
  sites_.push_back(std::move(site));
  totals_.emplace_back();
  return static_cast<uint32_t>(sites_.size() - 1);
}

int64_t SyncLog::duration_ns(const Event& event) const {
  return event.priced ? clock_->to_ns(event.end_ticks) - clock_->to_ns(event.begin_ticks) : -1;
}

void SyncLog::count(const Event& event) {
  Totals& totals = totals_[event.site];
  ++totals.count;
  totals.bytes += event.bytes;
  if (!event.priced) return;
  ++totals.priced;
  totals.blocked_ns += static_cast<uint64_t>(duration_ns(event));
}

void SyncLog::add(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (event.site >= sites_.size()) return;  // a site of the process that forked this one
  if (pending_.size() < kMaxPending) {
    pending_.push_back(event);
  } else {
    ++dropped_;
    count(event);
  }
}

void SyncLog::watch(bool on, bool as_if) {
  const uint64_t now = read_ticks();
  const std::lock_guard lock(mutex_);
  if (clock_ == nullptr || on == is_on_) return;
  is_on_ = on;
  watch_changed_ = true;
  if (on) {
    as_if_ = as_if;
    if (intervals_.size() < kMaxIntervals) intervals_.emplace_back(clock_->to_ns(now), -1);
  } else if (intervals_.back().second < 0) {
    intervals_.back().second = clock_->to_ns(now);
  }
}

bool SyncLog::take_watch_change() {
  const std::lock_guard lock(mutex_);
  return std::exchange(watch_changed_, false);
}

std::vector<SyncItem> SyncLog::take() {
  const std::lock_guard lock(mutex_);
  std::vector<SyncItem> items;
  items.reserve(pending_.size());
  for (const Event& event : pending_) {
    count(event);
    items.push_back({clock_->to_ns(event.begin_ticks), duration_ns(event), event.bytes, event.site,
                     event.path, event.step, event.thread});
  }
  pending_.clear();
  return items;
}

std::vector<SyncSite> SyncLog::sites_since(size_t from) const {
  const std::lock_guard lock(mutex_);
  return {sites_.begin() + static_cast<std::ptrdiff_t>(from), sites_.end()};
}

std::vector<uint8_t> SyncLog::encode_statistics(uint64_t appended) const {
  const std::lock_guard lock(mutex_);
  if (intervals_.empty()) return {};
  std::vector<uint64_t> words{appended, dropped_,
                              uint64_t{as_if_} << 32 | static_cast<uint32_t>(intervals_.size())};
  for (const auto& [begin_ns, end_ns] : intervals_) {
    words.push_back(static_cast<uint64_t>(begin_ns));
    words.push_back(static_cast<uint64_t>(end_ns));
  }
  for (uint32_t site = 0; site < totals_.size(); ++site) {
    const Totals& totals = totals_[site];
    if (totals.count == 0) continue;
    words.insert(words.end(), {site, totals.count, totals.priced, totals.blocked_ns, totals.bytes});
  }
  const auto* bytes = reinterpret_cast<const uint8_t*>(words.data());
  return {bytes, bytes + words.size() * sizeof(uint64_t)};
}

}  // namespace pig
