// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "hot/span.h"
#include "record/statistic.h"

namespace pig {

/// Statistics by path and scope. Not synchronised: each table has one owner or a lock beside it.
class StatisticsTable {
 public:
  struct Row {
    Statistic host;
    Statistic self;
    std::unique_ptr<Statistic> device;  ///< of the spans that were timed on the device

    Statistic& device_statistic() {
      if (!device) device = std::make_unique<Statistic>();
      return *device;
    }
    void merge(const Row& other) {
      host.merge(other.host);
      self.merge(other.self);
      if (other.device) device_statistic().merge(*other.device);
    }
  };

  /// Made when it is first asked for.
  Row& row(uint32_t path, Scope scope) { return at(path * kScopes + static_cast<uint32_t>(scope)); }

  /// `as_outside`: to the rows of the same paths outside any step.
  void merge(const StatisticsTable& other, bool as_outside = false) {
    for (uint32_t i = 0; i < other.rows_.size(); ++i)
      if (other.rows_[i])
        (as_outside ? row(i / kScopes, Scope::kOutside) : at(i)).merge(*other.rows_[i]);
  }

  /// Appends one encoded row (docs/run-file.md) for each path and scope that was seen.
  void encode(std::vector<uint8_t>& out) const {
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i]) continue;
      const Row& row = *rows_[i];
      const uint32_t kinds = kHost | kSelf | (row.device ? kDevice : 0);
      put(out, std::array{i / kScopes, i % kScopes, kinds, 0u});
      row.host.encode(out);
      row.self.encode(out);
      if (row.device) row.device->encode(out);
    }
  }

  void clear() { rows_.clear(); }

 private:
  static constexpr uint32_t kScopes = 5;
  static constexpr uint32_t kHost = 1;
  static constexpr uint32_t kSelf = 2;
  static constexpr uint32_t kDevice = 4;

  Row& at(uint32_t index) {
    if (index >= rows_.size()) rows_.resize(index + 1);
    if (!rows_[index]) rows_[index] = std::make_unique<Row>();
    return *rows_[index];
  }

  std::vector<std::unique_ptr<Row>> rows_;
};

}  // namespace pig
