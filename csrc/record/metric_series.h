// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "log/items.h"

namespace pig {

/// The readings of one recording on their way to its log. Any thread appends, the harvester takes.
class MetricSeries {
 public:
  static constexpr size_t kMaxNames = 4096;
  /// 32 MB of log. Readings become rarer as a run goes on, so that days of them stay below it.
  static constexpr uint64_t kMaxItems = uint64_t{1} << 20;
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxNameBytes = 1024;

  void reset() {
    const std::lock_guard lock(mutex_);
    pending_.clear();
    ids_.clear();
    names_.clear();
    items_ = 0;
  }

  /// False where there is no room: the value is not in the run.
  bool append(const std::string& name, uint64_t update, int64_t host_ns, double value,
              uint32_t step) {
    const std::lock_guard lock(mutex_);
    if (items_ == kMaxItems || pending_.size() == kMaxPending || name.size() > kMaxNameBytes)
      return false;
    auto found = ids_.find(name);
    if (found == ids_.end()) {
      if (ids_.size() == kMaxNames) return false;
      found = ids_.emplace(name, static_cast<uint32_t>(names_.size())).first;
      names_.push_back(name);
    }
    pending_.push_back({update, host_ns, value, found->second, step});
    ++items_;
    return true;
  }

  /// How many items were appended so far.
  uint64_t size() const {
    const std::lock_guard lock(mutex_);
    return items_;
  }

  std::vector<MetricItem> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(pending_, {});
  }

  std::vector<std::string> names_since(size_t from) const {
    const std::lock_guard lock(mutex_);
    return {names_.begin() + static_cast<std::ptrdiff_t>(from), names_.end()};
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> names_;
  std::vector<MetricItem> pending_;
  uint64_t items_ = 0;  ///< of the recording
};

}  // namespace pig
