// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace pig {

/// The names of all phases of the process, by id. Grows only; a name keeps its id as long as the
/// process lives.
class PhaseTable {
 public:
  static constexpr uint32_t kCapacity = 65535;
  /// Ids for spans that had no room in a table; they have names too, so that the time is not lost.
  static constexpr uint32_t kTooManyNames = kCapacity;
  static constexpr uint32_t kTooManyPaths = kCapacity + 1;

  static PhaseTable& instance() {
    static auto* table = new PhaseTable;  // leaked: threads may outlive static destruction
    return *table;
  }

  /// The new name's id, or nothing when the table is full. The caller sees to it that a name is
  /// added once.
  std::optional<uint32_t> add(std::string utf8_name) {
    const std::lock_guard lock(mutex_);
    if (names_.size() == kCapacity) return std::nullopt;
    names_.push_back(std::move(utf8_name));
    return static_cast<uint32_t>(names_.size() - 1);
  }

  std::string name(uint32_t id) const {
    if (id == kTooManyNames) return "(too many names)";
    if (id == kTooManyPaths) return "(too many paths)";
    const std::lock_guard lock(mutex_);
    return names_[id];
  }

  /// The mutex may have been held by a thread that does not exist in a forked child.
  void after_fork_in_child() { new (&mutex_) std::mutex; }

 private:
  mutable std::mutex mutex_;
  std::deque<std::string> names_;
};

}  // namespace pig
