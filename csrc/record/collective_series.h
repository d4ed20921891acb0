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

#include "log/items.h"

namespace pig {

/// The collective operations of one recording on their way to its log. The thread that reads
/// PyTorch's flight recorder appends, the harvester takes.
class CollectiveSeries {
 public:
  static constexpr size_t kMaxPending = 65536;

  void reset() {
    const std::lock_guard lock(mutex_);
    pending_.clear();
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
    return count;
  }

  std::vector<CollectiveItem> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<CollectiveItem> pending_;
};

}  // namespace pig
