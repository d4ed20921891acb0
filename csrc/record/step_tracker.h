// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/drops.h"
#include "hot/span.h"
#include "log/items.h"
#include "record/step_totals.h"

namespace pig {

/// The steps of one recording: at most one is open in the whole process. Each step opened has a
/// serial number; a dropped one (its loader had no further item) leaves a gap that readers close.
/// Some calls per step, so a mutex is cheap enough.
class StepTracker {
 public:
  struct Open {
    uint32_t serial;
    uint32_t thread;
    uint64_t begin_ticks;
    double samples;  ///< of the items so far; NaN: unknown
    uint32_t items;
    uint64_t mark_ticks = 0;  ///< 0: none was set
  };
  struct Pending {
    std::vector<StepItem> steps;
    std::vector<uint32_t> dropped;
    std::optional<Open> open;
  };

  /// What becomes of a step: one without an item may still be dropped.
  enum class Fate { kKept, kUndecided, kDropped };

  /// `published`: other threads see the open step (all but a scratch tracker's are).
  void reset(const Clock* clock, DropCounters* drops, bool published = true);

  /// Opens a step and publishes it to all threads. Nothing when one is open.
  std::optional<uint32_t> begin(uint32_t thread);
  // The step meant may not be the open one any more (the recording was stopped inside it): then
  // nothing happens.
  void add_item(uint32_t serial, double samples);
  /// Remembers this moment as one at which the step may have ended.
  void mark(uint32_t serial);
  /// `at_mark`: it ended at the last mark, if one was set, and not now.
  void end(uint32_t serial, bool complete, bool at_mark = false);
  void drop(uint32_t serial);
  /// Closes whatever is open, as incomplete.
  void end_open();

  /// From any thread. Two loads and comparisons, but for the spans of a step that is undecided or
  /// older than the last one dropped.
  Fate fate(uint32_t serial) const {
    if (PIG_UNLIKELY(serial == undecided_.load(std::memory_order_acquire))) return Fate::kUndecided;
    if (PIG_LIKELY(serial >= dropped_below_.load(std::memory_order_acquire))) return Fate::kKept;
    return was_dropped(serial) ? Fate::kDropped : Fate::kKept;
  }

  /// What happened since the last call. Appends the encoded totals to `totals`: they count what was
  /// taken until now, and no more.
  Pending take(std::vector<uint8_t>& totals);
  std::optional<Open> open() const;
  /// The number that users see: dropped steps have none.
  int64_t index_of(uint32_t serial) const;
  std::vector<uint32_t> dropped() const;

 private:
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxDropped =
      1u << 20;  // beyond it a dropped step leaves a gap in the numbering

  bool is_open(uint32_t serial) const { return open_ && open_->serial == serial; }
  bool was_dropped(uint32_t serial) const;
  void close();
  void publish(uint64_t step);

  mutable std::mutex mutex_;
  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  bool published_ = true;
  std::atomic<uint32_t> undecided_{kNoStep};  ///< the open step while it has no item
  std::atomic<uint32_t> dropped_below_{0};    ///< no step from here on was dropped
  std::optional<Open> open_;
  uint32_t next_ = 0;
  std::vector<StepItem> pending_;
  std::vector<uint32_t> pending_dropped_;
  std::vector<uint32_t> dropped_;
  StepTotals totals_;
};

}  // namespace pig
