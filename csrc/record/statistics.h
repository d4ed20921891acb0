// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "hot/span.h"
#include "record/measure.h"

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
    at(path * kScopes + static_cast<uint32_t>(scope)).device_measure().add(device_ns);
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
    Measure host;
    Measure self;
    std::unique_ptr<Measure> device;  ///< of the spans that were timed on the device

    Measure& device_measure() {
      if (!device) device = std::make_unique<Measure>();
      return *device;
    }
    void merge(const Row& other) {
      host.merge(other.host);
      self.merge(other.self);
      if (other.device) device_measure().merge(*other.device);
    }
  };

  Row& at(uint32_t index) {
    if (index >= rows_.size()) rows_.resize(index + 1);
    if (!rows_[index]) rows_[index] = std::make_unique<Row>();
    return *rows_[index];
  }

  std::vector<std::unique_ptr<Row>> rows_;
};

/// Totals over all steps of the run.
struct StepTotals {
  uint64_t count = 0;
  uint64_t complete = 0;
  uint64_t items = 0;
  uint64_t sampled = 0;     ///< steps whose number of samples is known
  uint64_t sampled_ns = 0;  ///< and their time
  double samples = 0;
  Measure duration;

  void add(uint64_t duration_ns, double step_samples, uint32_t step_items, bool step_complete) {
    ++count;
    complete += step_complete ? 1 : 0;
    items += step_items;
    if (!std::isnan(step_samples)) {
      ++sampled;
      sampled_ns += duration_ns;
      samples += step_samples;
    }
    duration.add(duration_ns);
  }

  void encode(std::vector<uint8_t>& out) const {
    const uint64_t words[5] = {count, complete, items, sampled, sampled_ns};
    const auto* bytes = reinterpret_cast<const uint8_t*>(words);
    out.insert(out.end(), bytes, bytes + sizeof words);
    const auto* tail = reinterpret_cast<const uint8_t*>(&samples);
    out.insert(out.end(), tail, tail + sizeof samples);
    duration.encode(out);
  }
};

}  // namespace pig
