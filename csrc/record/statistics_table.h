// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "hot/span.h"
#include "record/statistic.h"

namespace pig {

/// Statistics by path and scope. Not synchronised: each table has one owner or a lock beside it.
class StatisticsTable {
 public:
  void fold(uint32_t path, Scope scope, uint64_t host_ns, uint64_t self_ns) {
    Row& row = at(path * kScopes + static_cast<uint32_t>(scope));
    row.host.add(host_ns);
    row.self.add(self_ns);
  }

  /// The stream time of a span whose host time is in the table already.
  void fold_device(uint32_t path, Scope scope, uint64_t device_ns) {
    at(path * kScopes + static_cast<uint32_t>(scope)).device_statistic().add(device_ns);
  }

  void merge(const StatisticsTable& other) {
    for (uint32_t i = 0; i < other.rows_.size(); ++i)
      if (other.rows_[i]) at(i).merge(*other.rows_[i]);
  }

  /// Adds the rows of `other` to those of the same path outside any step.
  void merge_as_outside(const StatisticsTable& other) {
    for (uint32_t i = 0; i < other.rows_.size(); ++i)
      if (other.rows_[i])
        at(i / kScopes * kScopes + static_cast<uint32_t>(Scope::kOutside)).merge(*other.rows_[i]);
  }

  /// Appends one encoded row (docs/run-file.md) for each path and scope that was seen.
  void encode(std::vector<uint8_t>& out) const {
    for (uint32_t i = 0; i < rows_.size(); ++i) {
      if (!rows_[i]) continue;
      const Row& row = *rows_[i];
      const uint32_t head[4] = {i / kScopes, i % kScopes,
                                kHost | kSelf | (row.device ? kDevice : 0), 0};
      const auto* bytes = reinterpret_cast<const uint8_t*>(head);
      out.insert(out.end(), bytes, bytes + sizeof head);
      row.host.encode(out);
      row.self.encode(out);
      if (row.device) row.device->encode(out);
    }
  }

  void clear() { rows_.clear(); }

 private:
  static constexpr uint32_t kScopes = 3;
  static constexpr uint32_t kHost = 1;
  static constexpr uint32_t kSelf = 2;
  static constexpr uint32_t kDevice = 4;

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

  Row& at(uint32_t index) {
    if (index >= rows_.size()) rows_.resize(index + 1);
    if (!rows_[index]) rows_[index] = std::make_unique<Row>();
    return *rows_[index];
  }

  std::vector<std::unique_ptr<Row>> rows_;
};

}  // namespace pig
