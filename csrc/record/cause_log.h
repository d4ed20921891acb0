// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/throwing.h"
#include "hot/active_recording.h"
#include "hot/span.h"
#include "record/part.h"

namespace pig {

/// What may make steps slow, and when it was at work, on its way to the log. Any thread adds: times
/// that are worth an item of their own, and sums over the open step of those that are not. What
/// finds no room is counted.
class CauseLog final : public Part {
 public:
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxKinds = 16;

  void reset(const Session& session) override {
    const std::lock_guard lock(mutex_);
    clock_ = &session.clock;
    drops_ = &session.drops;
    pending_.clear();
    taken_.clear();
    sums_ = {};
  }

  /// A time. `thread`: the system's number of the one that it was on.
  void add(CauseKind kind, int64_t begin_ns, int64_t end_ns, uint32_t thread, uint32_t note) {
    if (active_epoch.load(std::memory_order_relaxed) == 0 || begin_ns < 0 || end_ns < begin_ns)
      return;
    const std::lock_guard lock(mutex_);
    append({begin_ns, end_ns - begin_ns, kNoStep, thread, kind, note});
  }

  /// The whole sum of a step that has ended, which may be 0.
  void add_of_step(CauseKind kind, uint32_t step, int64_t end_ns, int64_t time_ns) {
    const std::lock_guard lock(mutex_);
    append({end_ns, time_ns, step, 0, kind, 0});
  }

  /// Adds to the sum of the step that is open; outside steps nothing.
  void add_to_step(CauseKind kind, int64_t time_ns) {
    const uint64_t open = open_step.load(std::memory_order_acquire);
    const auto at = static_cast<size_t>(kind);
    if (active_epoch.load(std::memory_order_relaxed) == 0 || open == kNoOpenStep ||
        at >= kMaxKinds || time_ns < 0)
      return;
    const std::lock_guard lock(mutex_);
    CauseItem& sum = sums_[at];
    const auto step = static_cast<uint32_t>(open);
    if (sum.time_ns != 0 && sum.step != step) write(sum);
    sum.step = step;
    sum.kind = kind;
    sum.begin_ns = clock_->to_ns(read_ticks());
    sum.time_ns += time_ns;
    note_change();
  }

  /// The sums of steps that have ended go with the rest.
  void take(Harvest& harvest) override {
    const std::lock_guard lock(mutex_);
    const uint64_t open = open_step.load(std::memory_order_acquire);
    for (CauseItem& sum : sums_)
      if (sum.time_ns != 0 &&
          (harvest.final() || open == kNoOpenStep || sum.step != static_cast<uint32_t>(open)))
        write(sum);
    taken_ = std::exchange(pending_, {});
  }
  void drain(Harvest& harvest) override { harvest.log.append(taken_); }

 private:
  void write(CauseItem& sum) {
    append(sum);
    sum = {};
  }

  void append(const CauseItem& item) {
    const bool is_kept =
        pending_.size() < kMaxPending && try_allocating([&] { pending_.push_back(item); });
    if (!is_kept) drops_->add(Drop::kMetrics);
    note_change();
  }

  std::mutex mutex_;
  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  std::vector<CauseItem> pending_;
  std::vector<CauseItem> taken_;             ///< at this harvest
  std::array<CauseItem, kMaxKinds> sums_{};  ///< by kind, of one step each
};

}  // namespace pig
