// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/throwing.h"
#include "hot/phase_table.h"
#include "hot/span.h"

namespace pig {

/// The paths of one recording: a path is a phase under a parent path. Threads keep a small cache in
/// front of it.
class PathTable {
 public:
  static constexpr uint32_t kCapacity = 65536;

  struct Path {
    uint32_t parent;
    uint32_t phase;
  };

  /// The path's id. When the table is full, the id of the one path that stands for all others, and
  /// `full` is set. Throws std::bad_alloc.
  uint32_t intern(uint32_t parent, uint32_t phase, bool& full) {
    const std::lock_guard lock(mutex_);
    const auto found = ids_.find(key(parent, phase));
    full = false;
    if (found != ids_.end()) return found->second;
    if (paths_.size() + 1 < kCapacity) return add(parent, phase);
    full = true;
    const auto overflow = ids_.find(key(kNoPath, PhaseTable::kTooManyPaths));
    return overflow != ids_.end() ? overflow->second : add(kNoPath, PhaseTable::kTooManyPaths);
  }

  void reset() {
    const std::lock_guard lock(mutex_);
    paths_.clear();
    ids_.clear();
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return paths_.size();
  }

  std::vector<Path> since(size_t from) const {
    const std::lock_guard lock(mutex_);
    return {paths_.begin() + static_cast<std::ptrdiff_t>(from), paths_.end()};
  }

 private:
  static uint64_t key(uint32_t parent, uint32_t phase) {
    return static_cast<uint64_t>(parent) << 32 | phase;
  }

  uint32_t add(uint32_t parent, uint32_t phase) {
    const auto id = static_cast<uint32_t>(paths_.size());
    make_room(paths_, paths_.size() + 1);  // a path without its id would be added again
    ids_.emplace(key(parent, phase), id);
    paths_.push_back({parent, phase});
    return id;
  }

  mutable std::mutex mutex_;
  std::vector<Path> paths_;
  std::unordered_map<uint64_t, uint32_t> ids_;
};

}  // namespace pig
