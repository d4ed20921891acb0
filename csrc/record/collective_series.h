// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "record/part.h"

namespace pig {

/// The collective operations of one recording on their way to its log. The thread that reads
/// PyTorch's flight recorder appends, the harvester takes.
class CollectiveSeries final : public Part {
 public:
  static constexpr size_t kMaxPending = 65536;

  void reset(const Session&) override {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    newest_ns_ = 0;
  }

  /// Items as they lie in memory. Returns how many there was room for: the first ones.
  size_t append(std::span<const uint8_t> items) {
    const std::lock_guard lock(mutex_);
    const size_t count =
        std::min(items.size() / sizeof(CollectiveItem), kMaxPending - pending_.size());
    if (count == 0) return 0;
    const size_t before = pending_.size();
    pending_.resize(before + count);
    std::memcpy(&pending_[before], items.data(), count * sizeof(CollectiveItem));
    note_change();
    return count;
  }

  /// When the newest one that is in the log was created.
  int64_t newest_ns() const { return newest_ns_; }

  /// They refer to nothing, so they are taken as they are written.
  void drain(Harvest& harvest) override {
    std::unique_lock lock(mutex_);
    const std::vector<CollectiveItem> taken = std::exchange(pending_, {});
    lock.unlock();
    for (const CollectiveItem& item : taken) newest_ns_ = std::max(newest_ns_, item.created_ns);
    harvest.log.append(taken);
  }

 private:
  std::mutex mutex_;
  std::vector<CollectiveItem> pending_;
  int64_t newest_ns_ = 0;  ///< under the harvest lock
};

}  // namespace pig
