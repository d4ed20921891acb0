// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/throwing.h"
#include "hot/active_recording.h"
#include "hot/span.h"
#include "record/part.h"

namespace pig {

/// The readings of one recording on their way to its log: those of metrics, and numbers that each
/// step has one of. Any thread appends, the harvester takes.
class MetricSeries final : public Part {
 public:
  static constexpr size_t kMaxNames = 4096;
  /// 32 MB of log. Readings become rarer as a run goes on, so that days of them stay below it.
  static constexpr uint64_t kMaxItems = uint64_t{1} << 20;
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxNameBytes = 1024;
  /// Different numbers that a step may have.
  static constexpr size_t kMaxOfSteps = 64;
  /// After so many values of a number, those of every second step are written, after as many again
  /// those of every fourth, and so on: ten million steps have 150,000.
  static constexpr uint64_t kValuesPerRate = 16384;

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

  /// Adds to a number of the step that is open, if there is one: `tokens` becomes the reading
  /// `step/tokens`. NaN says that it is not known of this step, which then has none. Costs tens of
  /// nanoseconds.
  void add_to_step(std::string_view name, double value) {
    if (active_epoch.load(std::memory_order_relaxed) == 0) return;
    const uint64_t step = open_step.load(std::memory_order_acquire);
    if (step != kNoOpenStep) add_to(static_cast<uint32_t>(step), name, value);
  }
  /// The same for a step that has ended, before `step_ends`.
  void add_to(uint32_t step, std::string_view name, double value) {
    const std::lock_guard lock(mutex_);
    if (OfStep* number = number_named(name)) {
      step_ = step;
      number->sum += value;
      number->is_given = true;
      has_number_.store(true, std::memory_order_release);
    }
  }
  /// The open step has ended, and is one.
  void step_ends() {
    if (!has_number_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    has_number_.store(false, std::memory_order_relaxed);
    for (OfStep& number : of_steps_) {
      const double sum = std::exchange(number.sum, 0);
      if (std::exchange(number.is_given, false) && !std::isnan(sum)) write(number, sum);
    }
  }
  /// There was no such step.
  void step_is_dropped() {
    if (!has_number_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    has_number_.store(false, std::memory_order_relaxed);
    for (OfStep& number : of_steps_) {
      number.sum = 0;
      number.is_given = false;
    }
  }
  /// Called while a step may be open, which then ends.
  void close() override { step_ends(); }

  void reset(const Session& session) override {
    const std::lock_guard lock(mutex_);
    clock_ = &session.clock;
    drops_ = &session.drops;
    pending_.clear();
    taken_.clear();
    of_steps_.clear();
    has_number_ = false;
    ids_.clear();
    names_.clear();
    items_ = 0;
  }

  void take(Harvest&) override {
    const std::lock_guard lock(mutex_);
    taken_ = std::exchange(pending_, {});
  }
  void drain(Harvest& harvest) override {
    write_copy(harvest.log, Copy::kTables);
    harvest.log.append(taken_);
  }
  void write_copy(RunLog& log, Copy copy) override {
    if (copy == Copy::kAllButHistory) return;  // their values are history
    for (const std::string& name : names_since(log.entries(BlockType::kMetricNames)))
      log.append_entry(BlockType::kMetricNames, name);
  }

 private:
  /// A number that each step may have.
  struct OfStep {
    std::string name;
    double sum = 0;  ///< of the open step
    bool is_given = false;
    uint64_t steps = 0;  ///< that had one
    uint64_t written = 0;
  };

  /// Null where there is no room for it, which is counted.
  OfStep* number_named(std::string_view name) {
    for (OfStep& number : of_steps_)
      if (std::string_view(number.name).substr(kOfStep.size()) == name) return &number;
    const bool has_room = of_steps_.size() < kMaxOfSteps && try_allocating([&] {
                            of_steps_.push_back({std::string(kOfStep).append(name)});
                          });
    if (!has_room) drops_->add(Drop::kMetrics);
    return has_room ? &of_steps_.back() : nullptr;
  }

  void write(OfStep& number, double value) {
    if (number.steps++ % (uint64_t{1} << number.written / kValuesPerRate) != 0) return;
    ++number.written;
    bool is_kept = false;
    try_allocating([&] {
      const int64_t now_ns = clock_->to_ns(read_ticks());
      is_kept = append(number.steps, now_ns, {number.name, value, step_});
    });
    if (!is_kept) drops_->add(Drop::kMetrics);
  }

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

  /// What their names begin with.
  static constexpr std::string_view kOfStep = "step/";

  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> names_;
  std::vector<MetricItem> pending_;
  std::vector<MetricItem> taken_;  ///< at this harvest
  uint64_t items_ = 0;             ///< of the recording
  std::vector<OfStep> of_steps_;
  uint32_t step_ = kNoStep;               ///< that their sums are of
  std::atomic<bool> has_number_ = false;  ///< whether one was given
};

}  // namespace pig
