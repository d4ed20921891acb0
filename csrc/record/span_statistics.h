// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "hot/span.h"
#include "record/statistics_table.h"
#include "record/step_tracker.h"

namespace pig {

/// Statistics of finished spans, by path and scope.
///
/// A step without an item may still be dropped (its loader had none left), and with it the scope of
/// the spans in it changes: they are then outside any step. Such spans are kept apart until the
/// step's fate is known. At most one step is undecided at a time. Not synchronised: each has one
/// owner or a lock beside it.
class SpanStatistics {
 public:
  void fold(const StepTracker& steps, const RawSpan& span, const NanosecondSpan& times) {
    StatisticsTable::Row& row = row_of(steps, span.step(), span.path(), span.scope());
    const auto self = static_cast<uint64_t>(times.self);
    row.self.make_room(self);  // it counts in both or in none
    row.host.add(static_cast<uint64_t>(times.end - times.begin));
    row.self.add(self);
  }

  /// The stream time of a span that was folded before.
  void fold_device(const StepTracker& steps, uint32_t step, uint32_t path, uint8_t flags,
                   uint64_t device_ns) {
    row_of(steps, step, path, scope_of(step, flags)).device_statistic().add(device_ns);
  }

  /// Adds all of it to `table`. A step that is still undecided counts as a step.
  void merge_into(StatisticsTable& table, const StepTracker& steps) {
    settle(steps);
    table.merge(settled_);
    table.merge(undecided_);
  }

  /// Appends the encoded rows of such a table, which is only made where it is needed.
  void encode(const StepTracker& steps, std::vector<uint8_t>& out) {
    settle(steps);
    if (undecided_step_ == kNoStep) return settled_.encode(out);
    StatisticsTable all;
    merge_into(all, steps);
    all.encode(out);
  }

  /// Takes over what another one holds, undecided spans as such.
  void absorb(SpanStatistics& other, const StepTracker& steps) {
    settle(steps);
    other.settle(steps);
    // A step that became undecided after ours was looked at: ours is decided by now.
    if (undecided_step_ != other.undecided_step_) settle(steps);
    settled_.merge(other.settled_);
    undecided_.merge(other.undecided_);
    if (other.undecided_step_ != kNoStep) undecided_step_ = other.undecided_step_;
    other.clear();
  }

  void clear() {
    settled_.clear();
    undecided_.clear();
    undecided_step_ = kNoStep;
  }

 private:
  StatisticsTable::Row& row_of(const StepTracker& steps, uint32_t step, uint32_t path,
                               Scope scope) {
    if (scope == Scope::kOutside) return settled_.row(path, scope);
    if (PIG_UNLIKELY(steps.is_profiled(step)))
      scope = scope == Scope::kStep ? Scope::kProfiledStep : Scope::kProfiledOtherThreads;
    const StepTracker::Fate fate = steps.fate(step);
    if (fate == StepTracker::Fate::kDropped) return settled_.row(path, Scope::kOutside);
    if (fate == StepTracker::Fate::kKept) return settled_.row(path, scope);
    if (undecided_step_ != step) settle(steps);
    undecided_step_ = step;
    return undecided_.row(path, scope);
  }

  void settle(const StepTracker& steps) {
    if (undecided_step_ == kNoStep) return;
    const StepTracker::Fate fate = steps.fate(undecided_step_);
    if (fate == StepTracker::Fate::kUndecided) return;
    settled_.merge(undecided_, /*as_outside=*/fate == StepTracker::Fate::kDropped);
    undecided_.clear();
    undecided_step_ = kNoStep;
  }

  StatisticsTable settled_;
  StatisticsTable undecided_;
  uint32_t undecided_step_ = kNoStep;
};

}  // namespace pig
