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

/// What has a name: a phase, or a way to go through a module. The numbers stand in run files.
enum class NameKind : uint32_t { kPhase = 0, kForward = 1, kBackward = 2, kRecompute = 3 };

/// The names of all phases of the process, by id. Grows only; a name keeps its id as long as the
/// process lives. A module has an id for each way to go through it.
class PhaseTable {
 public:
  static constexpr uint32_t kCapacity = 65535;
  /// Ids that many phases share, for which a table or the memory had no room; they have names too,
  /// so that the time is not lost.
  static constexpr uint32_t kTooManyNames = kCapacity;
  static constexpr uint32_t kTooManyPaths = kCapacity + 1;
  static constexpr uint32_t kNoMemory = kCapacity + 2;
  static constexpr uint32_t kSharedIds = 3;

  static PhaseTable& instance() {
    static auto* table = new PhaseTable;  // leaked: threads may outlive static destruction
    return *table;
  }

  /// The new name's id, or nothing when the table is full. The caller sees to it that a name is
  /// added once. Throws std::bad_alloc.
  std::optional<uint32_t> add(std::string utf8_name, NameKind kind = NameKind::kPhase) {
    const std::lock_guard lock(mutex_);
    if (names_.size() == kCapacity) return std::nullopt;
    names_.push_back({std::move(utf8_name), kind});
    return static_cast<uint32_t>(names_.size() - 1);
  }

  bool is_full() const {
    const std::lock_guard lock(mutex_);
    return names_.size() == kCapacity;
  }

  std::string name(uint32_t id) const {
    if (id == kTooManyNames) return "(too many names)";
    if (id == kTooManyPaths) return "(too many paths)";
    if (id == kNoMemory) return "(no memory for the name)";
    const std::lock_guard lock(mutex_);
    return names_[id].text;
  }

  NameKind kind(uint32_t id) const {
    if (id >= kTooManyNames) return NameKind::kPhase;
    const std::lock_guard lock(mutex_);
    return names_[id].kind;
  }

  /// The mutex may have been held by a thread that does not exist in a forked child.
  void after_fork_in_child() { new (&mutex_) std::mutex; }

 private:
  mutable std::mutex mutex_;
  struct Name {
    std::string text;
    NameKind kind;
  };
  std::deque<Name> names_;
};

}  // namespace pig
