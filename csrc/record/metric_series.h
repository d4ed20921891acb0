// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hot/active_recording.h"
#include "hot/span.h"
#include "record/part.h"

namespace pig {

/// The readings of one recording on their way to its log. Any thread appends, the harvester takes.
class MetricSeries final : public Part {
 public:
  static constexpr size_t kMaxNames = 4096;
  /// 32 MB of log. Readings become rarer as a run goes on, so that days of them stay below it.
  static constexpr uint64_t kMaxItems = uint64_t{1} << 20;
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxNameBytes = 1024;

  /// One value of a reading.
  struct Value {
    std::string name;
    double value = 0;
    uint32_t step = kNoStep;  ///< in which it was last updated
  };

  /// Adds a reading of metrics to the recording that is active, as of now. What finds no room is
  /// counted. Costs microseconds; the harvester writes it.
  void append(uint64_t update, const std::vector<Value>& values) {
    if (active_epoch.load(std::memory_order_relaxed) == 0) return;
    const std::lock_guard lock(mutex_);
    const int64_t now_ns = clock_->to_ns(read_ticks());
    for (const Value& value : values)
      if (!append(update, now_ns, value)) drops_->add(Drop::kMetrics);
  }

  void reset(const Session& session) override {
    const std::lock_guard lock(mutex_);
    clock_ = &session.clock;
    drops_ = &session.drops;
    pending_.clear();
    taken_.clear();
    pending_.clear();
    ids_.clear();
    names_.clear();
    items_ = 0;
  }

  void take(Harvest&) override {
    const std::lock_guard lock(mutex_);
    taken_ = std::exchange(pending_, {});
  }
  void drain(Harvest& harvest) override {
    restate(harvest.log, Copy::kTables);
    harvest.log.append(taken_);
  }
  void restate(RunLog& log, Copy copy) override {
    if (copy == Copy::kAllButHistory) return;  // their values are history
    for (const std::string& name : names_since(log.entries(BlockType::kMetricNames)))
      log.append_entry(BlockType::kMetricNames, name);
  }

 private:
  std::vector<std::string> names_since(size_t from) const {
    const std::lock_guard lock(mutex_);
    return {names_.begin() + static_cast<std::ptrdiff_t>(from), names_.end()};
  }

  /// False where there is no room: the value is not in the run.
  bool append(uint64_t update, int64_t host_ns, const Value& value) {
    const auto& [name, number, step] = value;
    if (items_ == kMaxItems || pending_.size() == kMaxPending || name.size() > kMaxNameBytes)
      return false;
    auto found = ids_.find(name);
    if (found == ids_.end()) {
      if (ids_.size() == kMaxNames) return false;
      found = ids_.emplace(name, static_cast<uint32_t>(names_.size())).first;
      names_.push_back(name);
    }
    pending_.push_back({update, host_ns, number, found->second, step});
    ++items_;
    note_change();
    return true;
  }

  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> names_;
  std::vector<MetricItem> pending_;
  std::vector<MetricItem> taken_;  ///< at this harvest
  uint64_t items_ = 0;             ///< of the recording
};

}  // namespace pig
