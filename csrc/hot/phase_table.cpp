// SPDX-License-Identifier: Apache-2.0
#include "hot/phase_table.h"

#include <new>
#include <utility>

namespace pig {

PhaseTable& PhaseTable::instance() {
  static auto* table = new PhaseTable;  // leaked: threads may outlive static destruction
  return *table;
}

std::optional<uint32_t> PhaseTable::add(std::string utf8_name) {
  const std::lock_guard lock(mutex_);
  if (names_.size() == kCapacity) return std::nullopt;
  names_.push_back(std::move(utf8_name));
  return static_cast<uint32_t>(names_.size() - 1);
}

std::string PhaseTable::name(uint32_t id) const {
  if (id == kTooManyNames) return "(too many names)";
  if (id == kTooManyPaths) return "(too many paths)";
  const std::lock_guard lock(mutex_);
  return names_[id];
}

void PhaseTable::after_fork_in_child() { new (&mutex_) std::mutex; }

}  // namespace pig
