// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/threads.h"
#include "base/throwing.h"
#include "hot/span.h"
#include "hot/span_ring.h"
#include "record/statistic.h"
#include "record/step_tracker.h"

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

/// Statistics of finished spans, by path and scope.
///
/// A step without an item may still be dropped (its loader had none left), and with it the scope of
/// the spans in it changes: they are then outside any step. Such spans are kept apart until the
/// step's fate is known. At most one step is undecided at a time. Not synchronised: each has one
/// owner or a lock beside it.
class SpanStatistics {
 public:
  explicit SpanStatistics(const StepTracker& steps) : steps_(steps) {}

  void fold(const RawSpan& span, const NanosecondSpan& times) {
    StatisticsTable::Row& row = row_of(span.step(), span.path(), span.scope());
    const auto self = static_cast<uint64_t>(times.self);
    row.self.make_room(self);  // it counts in both or in none
    row.host.add(static_cast<uint64_t>(times.end - times.begin));
    row.self.add(self);
  }

  /// The device time of a span that was folded before.
  void fold_device(uint32_t step, uint32_t path, uint8_t flags, uint64_t device_ns) {
    row_of(step, path, scope_of(step, flags)).device_statistic().add(device_ns);
  }

  /// All of it. A step that is still undecided counts as a step.
  void merge_into(StatisticsTable& table) {
    decide();
    table.merge(decided_);
    table.merge(undecided_);
  }

  /// Appends the encoded totals of the steps and then the rows.
  void encode(std::vector<uint8_t>& out) {
    steps_.encode_totals(out);
    decide();
    if (undecided_step_ == kNoStep) return decided_.encode(out);
    StatisticsTable all;
    merge_into(all);
    all.encode(out);
  }

  /// Takes over what another one of the same steps holds, undecided spans as such.
  void absorb(SpanStatistics& other) {
    decide();
    other.decide();
    // A step that became undecided after ours was looked at: ours is decided by now.
    if (undecided_step_ != other.undecided_step_) decide();
    decided_.merge(other.decided_);
    undecided_.merge(other.undecided_);
    if (other.undecided_step_ != kNoStep) undecided_step_ = other.undecided_step_;
    other.clear();
  }

  /// All of it, of which nothing is left here.
  SpanStatistics release() {
    SpanStatistics released = std::move(*this);
    clear();
    return released;
  }

  void clear() {
    decided_.clear();
    undecided_.clear();
    undecided_step_ = kNoStep;
  }

  const StepTracker& steps() const { return steps_; }

 private:
  StatisticsTable::Row& row_of(uint32_t step, uint32_t path, Scope scope) {
    if (scope == Scope::kOutside) return decided_.row(path, scope);
    if (PIG_UNLIKELY(steps_.is_profiled(step)))
      scope = scope == Scope::kStep ? Scope::kProfiledStep : Scope::kProfiledOtherThreads;
    const StepTracker::Fate fate = steps_.fate(step);
    if (fate == StepTracker::Fate::kDropped) return decided_.row(path, Scope::kOutside);
    if (fate == StepTracker::Fate::kKept) return decided_.row(path, scope);
    if (undecided_step_ != step) decide();
    undecided_step_ = step;
    return undecided_.row(path, scope);
  }

  void decide() {
    if (undecided_step_ == kNoStep) return;
    const StepTracker::Fate fate = steps_.fate(undecided_step_);
    if (fate == StepTracker::Fate::kUndecided) return;
    decided_.merge(undecided_, /*as_outside=*/fate == StepTracker::Fate::kDropped);
    undecided_.clear();
    undecided_step_ = kNoStep;
  }

  const StepTracker& steps_;
  StatisticsTable decided_;
  StatisticsTable undecided_;
  uint32_t undecided_step_ = kNoStep;
};

/// Statistics of the spans that found no room in their threads' rings, until the harvester takes
/// them. The threads fold the spans themselves, without I/O.
class OverflowStatistics final : public SpanOverflow {
 public:
  explicit OverflowStatistics(const StepTracker& steps) : statistics_(steps) {}

  void reset(const Clock& clock, DropCounters& drops) {
    clock_ = &clock;
    drops_ = &drops;
    statistics_.clear();
    spans_ = 0;
  }

  void fold(std::span<const RawSpan> spans) override {
    drops_->add(Drop::kRingFull, spans.size());
    const std::lock_guard lock(lock_);
    size_t folded = 0;
    const bool fits = try_allocating([&] {
      for (; folded != spans.size(); ++folded, ++spans_) {
        const RawSpan& span = spans[folded];
        statistics_.fold(span, to_nanoseconds(*clock_, span));
        if ((span.flags() & kDeviceTimed) != 0) drops_->add(Drop::kDeviceHistory);
      }
    });
    if (!fits) drops_->add(Drop::kNoMemory, spans.size() - folded);
  }

  /// Moves all to `statistics`. Returns how many spans that are.
  uint64_t take(SpanStatistics& statistics) {
    std::unique_lock lock(lock_);
    const uint64_t spans = std::exchange(spans_, 0);
    SpanStatistics taken = statistics_.release();
    lock.unlock();
    if (spans != 0) statistics.absorb(taken);
    return spans;
  }

 private:
  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  SpinLock lock_;
  SpanStatistics statistics_;
  uint64_t spans_ = 0;
};

}  // namespace pig
