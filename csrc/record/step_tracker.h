// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/throwing.h"
#include "hot/active_recording.h"
#include "hot/span.h"
#include "log/shared_page.h"
#include "record/part.h"
#include "record/statistic.h"

namespace pig {

/// When a step ended.
enum class StepEnd {
  kNow,
  kAtUpdate,  ///< at the last update that was noted; now, where none was
  /// Now, if another step follows. The last one of a loop ends at its update: what came between was
  /// no part of the loop.
  kNowUnlessLast,
};

/// Totals over all steps of the run.
struct StepTotals {
  uint64_t count = 0;
  uint64_t complete = 0;
  uint64_t items = 0;
  uint64_t sampled = 0;     ///< steps whose number of samples is known
  uint64_t sampled_ns = 0;  ///< and their time
  double samples = 0;
  Statistic duration;

  /// Throws std::bad_alloc, and then nothing was added.
  void add(const StepItem& step) {
    const auto duration_ns = static_cast<uint64_t>(step.end_ns - step.begin_ns);
    duration.add(duration_ns);
    ++count;
    complete += step.flags & 1;
    items += step.items;
    if (!std::isnan(step.samples)) {
      ++sampled;
      sampled_ns += duration_ns;
      samples += step.samples;
    }
  }

  void encode(std::vector<uint8_t>& out) const {
    put(out, std::array{count, complete, items, sampled, sampled_ns});
    put(out, samples);
    duration.encode(out);
  }
};

/// The steps of one recording: at most one is open in the whole process. Each step opened has a
/// serial number; a dropped one (its loader had no further item) leaves a gap that readers close.
/// Some calls per step, so a mutex is cheap enough.
class StepTracker final : public Part {
 public:
  struct Open {
    uint32_t serial;
    uint32_t thread;
    uint64_t begin_ticks;
    double samples;  ///< of the items so far; NaN: unknown
    uint32_t items;
    uint64_t update_ticks = 0;  ///< 0: none was noted
    uint32_t flags = 0;         ///< of its item
  };

  /// What becomes of a step: one without an item may still be dropped.
  enum class Fate { kKept, kUndecided, kDropped };

  /// `published`: other threads see the open step (all but a scratch tracker's are).
  explicit StepTracker(bool published = true) : published_(published) {}

  void reset(const Session& session) override {
    const std::lock_guard lock(mutex_);
    clock_ = &session.clock;
    drops_ = &session.drops;
    open_.reset();
    held_.reset();
    next_ = 0;
    pending_.clear();
    taken_.clear();
    counted_ = 0;
    dropped_.clear();
    dropped_taken_ = 0;
    windows_.clear();
    profiled_from_.store(0, std::memory_order_relaxed);
    profiled_below_.store(0, std::memory_order_relaxed);
    totals_ = {};
    profiled_totals_ = {};
    after_first_ = {};
    undecided_.store(kNoStep, std::memory_order_relaxed);
    dropped_below_.store(0, std::memory_order_relaxed);
    publish(kNoOpenStep);
    page_.remove();
    if (session.options.path) page_.open(session.run_id, *session.options.path);
  }

  /// Steps that begin from now on are profiled, until this is taken back: the open one is then the
  /// last. To be begun between two steps. Returns the index of the next step.
  int64_t set_profiled(bool profiled) {
    const std::lock_guard lock(mutex_);
    const bool is_on = profiled_below_.load(std::memory_order_relaxed) == kNoStep;
    if (profiled && !is_on) {
      // Of the oldest one all spans have long been counted.
      if (windows_.size() == kMaxWindows) windows_.erase(windows_.begin());
      windows_.emplace_back(next_, kNoStep);
      profiled_from_.store(next_, std::memory_order_release);
      profiled_below_.store(kNoStep, std::memory_order_release);
    } else if (!profiled && is_on) {
      windows_.back().second = next_;
      profiled_below_.store(next_, std::memory_order_release);
    }
    return index_below(next_);
  }

  /// The index of the next step, if it is not dropped.
  int64_t next_index() const {
    const std::lock_guard lock(mutex_);
    return index_below(next_);
  }

  /// From any thread. At most two loads and comparisons, but for spans of steps before the newest
  /// window.
  bool is_profiled(uint32_t serial) const {
    if (PIG_LIKELY(serial >= profiled_below_.load(std::memory_order_acquire))) return false;
    if (serial >= profiled_from_.load(std::memory_order_acquire)) return true;
    const std::lock_guard lock(mutex_);
    return is_in_window(serial);
  }

  /// Opens a step and publishes it to all threads. Nothing when one is open.
  std::optional<uint32_t> begin(uint32_t thread) {
    const std::lock_guard lock(mutex_);
    if (open_ || next_ == kNoStep) return std::nullopt;
    open_ = {next_++, thread, read_ticks(), 0, 0};
    undecided_.store(open_->serial, std::memory_order_release);
    publish(static_cast<uint64_t>(thread) << 32 | open_->serial);
    ++changes_;
    return open_->serial;
  }

  // The step meant may not be the open one any more (the recording was stopped inside it): then
  // nothing happens.
  void add_item(uint32_t serial, double samples) {
    const std::lock_guard lock(mutex_);
    if (!is_open(serial)) return;
    release(/*is_last=*/false);  // what has an item is a step
    open_->samples += samples;
    ++open_->items;
    ++changes_;
    undecided_.store(kNoStep, std::memory_order_release);
  }

  void add_flags(uint32_t serial, uint32_t flags) {
    const std::lock_guard lock(mutex_);
    if (is_open(serial)) open_->flags |= flags;
  }

  /// The parameters have just been updated: the step ends here if nothing more belongs to it.
  void note_update(uint32_t serial) {
    const uint64_t now = read_ticks();
    const std::lock_guard lock(mutex_);
    if (is_open(serial)) open_->update_ticks = now;
  }

  void end(uint32_t serial, bool complete, StepEnd when = StepEnd::kNow) {
    const std::lock_guard lock(mutex_);
    // Under the lock: `take` then has all steps that ended before it was called.
    uint64_t now = read_ticks();
    if (!is_open(serial)) return;
    release(/*is_last=*/false);
    const bool is_updated = open_->update_ticks != 0;
    if (when == StepEnd::kNowUnlessLast && is_updated) {
      held_ = {*open_, now, complete};
    } else {
      finish(*open_, when == StepEnd::kAtUpdate && is_updated ? open_->update_ticks : now,
             complete);
    }
    publish_none();
  }

  void drop(uint32_t serial) {
    const std::lock_guard lock(mutex_);
    if (!is_open(serial)) return;
    // Where there is no room, it leaves a gap in the numbering.
    const bool has_room = dropped_.size() < kMaxDropped;
    if (has_room && try_allocating([&] { dropped_.push_back(serial); }))
      dropped_below_.store(serial + 1, std::memory_order_release);
    publish_none();
  }

  /// The loop is over.
  void no_step_follows() {
    const std::lock_guard lock(mutex_);
    release(/*is_last=*/true);
  }

  /// Closes whatever is open, as incomplete.
  void close() override {
    if (const std::optional<Open> step = open()) end(step->serial, false);
    const std::lock_guard lock(mutex_);
    release(/*is_last=*/false);
  }

  /// From any thread. Two loads and comparisons, but for the spans of a step that is undecided or
  /// older than the last one dropped.
  Fate fate(uint32_t serial) const {
    if (PIG_UNLIKELY(serial == undecided_.load(std::memory_order_acquire))) return Fate::kUndecided;
    if (PIG_LIKELY(serial >= dropped_below_.load(std::memory_order_acquire))) return Fate::kKept;
    return was_dropped(serial) ? Fate::kDropped : Fate::kKept;
  }

  /// How often a step was opened, given an item or closed. All that ended before this was called is
  /// counted.
  uint64_t changes() const {
    const std::lock_guard lock(mutex_);
    return changes_;
  }

  uint64_t activity() const override { return kChange * changes(); }

  void abandon() override { page_.abandon(); }

  /// A step whose end depends on what follows is still open.
  void take(Harvest& harvest) override {
    const std::lock_guard lock(mutex_);
    for (; counted_ < pending_.size(); ++counted_) count(pending_[counted_]);
    counted_ = 0;
    taken_ = std::exchange(pending_, {});
    dropped_taken_ = dropped_.size();
    if (!open_ && !held_) return;
    const Open& open = open_ ? *open_ : held_->step;
    const int64_t begin_ns = clock_->to_ns(open.begin_ticks);
    if (begin_ns > harvest.state.now_ns) {
      harvest.is_whole = false;
    } else {
      harvest.state.open_step = {open.serial,  open.thread, begin_ns, -1,
                                 open.samples, open.items,  0};
    }
  }
  void drain(Harvest& harvest) override {
    write_copy(harvest.log, Copy::kTables);
    harvest.log.append(taken_);
    if (!harvest.final()) return;
    const std::lock_guard lock(mutex_);
    page_.remove();
  }
  /// Those that were dropped, as far as they were taken.
  void write_copy(RunLog& log, Copy) override {
    std::vector<DroppedStepItem> dropped;
    {
      const std::lock_guard lock(mutex_);
      const auto first = dropped_.begin() + log.entries(BlockType::kDroppedSteps);
      for (auto at = first; at < dropped_.begin() + dropped_taken_; ++at) dropped.push_back({*at});
    }
    log.append(dropped);
  }

  /// Appends the encoded totals. They count what was taken until now, and what had no room to wait
  /// for that.
  void encode_totals(std::vector<uint8_t>& out) const {
    const std::lock_guard lock(mutex_);
    totals_.encode(out);
    profiled_totals_.encode(out);
  }

  /// In the first steps programs are compiled, memory is allocated and caches are filled: they say
  /// little of how long later ones take.
  static constexpr uint64_t kFirstSteps = 10;

  /// Of the steps that were taken: how many ended, and what 99 % of those after the first ones took
  /// at most, those apart that were profiled. Without any such step, the median of all.
  std::pair<uint64_t, uint64_t> usual_ns() const {
    const std::lock_guard lock(mutex_);
    const StepTotals& totals = totals_.count != 0 ? totals_ : profiled_totals_;
    return {totals_.count + profiled_totals_.count,
            after_first_.count() != 0 ? after_first_.quantile(99) : totals.duration.quantile(50)};
  }

  std::optional<Open> open() const {
    const std::lock_guard lock(mutex_);
    return open_;
  }

  /// The number that users see: dropped steps have none.
  int64_t index_of(uint32_t serial) const {
    const std::lock_guard lock(mutex_);
    return index_below(serial);
  }

 private:
  static constexpr size_t kMaxPending = 65536;
  static constexpr size_t kMaxDropped =
      1u << 20;  // beyond it a dropped step leaves a gap in the numbering
  static constexpr size_t kMaxWindows = 4096;

  /// A step whose end depends on whether another one follows.
  struct Held {
    Open step;
    uint64_t end_ticks;
    bool complete;
  };

  void release(bool is_last) {
    if (!held_) return;
    const Held held = *std::exchange(held_, std::nullopt);
    finish(held.step, is_last ? held.step.update_ticks : held.end_ticks, held.complete);
    ++changes_;
  }

  void finish(const Open& open, uint64_t end_ticks, bool complete) {
    const double samples =
        open.items != 0 ? open.samples : std::numeric_limits<double>::quiet_NaN();
    const uint32_t flags = (complete ? 1u : 0u) | (is_in_window(open.serial) ? 4u : 0u);
    const StepItem step{open.serial,
                        open.thread,
                        clock_->to_ns(open.begin_ticks),
                        clock_->to_ns(end_ticks),
                        samples,
                        open.items,
                        open.flags | flags};
    page_.note(step);
    const bool is_kept = try_allocating([&] {
      if (pending_.size() < kMaxPending) {
        pending_.push_back(step);
      } else {
        count(step);
        drops_->add(Drop::kStepHistory);
      }
    });
    if (!is_kept) drops_->add(Drop::kNoMemory);
  }

  void count(const StepItem& step) {
    const bool is_profiled = is_in_window(step.serial);
    // First: where there is no memory, the step is counted again.
    if (!is_profiled && totals_.count + profiled_totals_.count >= kFirstSteps)
      after_first_.add(static_cast<uint64_t>(step.end_ns - step.begin_ns));
    (is_profiled ? profiled_totals_ : totals_).add(step);
  }

  int64_t index_below(uint32_t serial) const {
    const auto below = std::lower_bound(dropped_.begin(), dropped_.end(), serial);
    return static_cast<int64_t>(serial) - (below - dropped_.begin());
  }
  bool is_in_window(uint32_t serial) const {
    return std::any_of(windows_.rbegin(), windows_.rend(), [serial](const auto& window) {
      return serial >= window.first && serial < window.second;
    });
  }
  bool is_open(uint32_t serial) const { return open_ && open_->serial == serial; }
  bool was_dropped(uint32_t serial) const {
    const std::lock_guard lock(mutex_);
    return std::binary_search(dropped_.begin(), dropped_.end(), serial);
  }

  void publish_none() {
    ++changes_;
    undecided_.store(kNoStep, std::memory_order_release);
    publish(kNoOpenStep);
    open_.reset();
  }

  void publish(uint64_t step) {
    if (published_) open_step.store(step, std::memory_order_release);
  }

  mutable std::mutex mutex_;
  const Clock* clock_ = nullptr;
  DropCounters* drops_ = nullptr;
  const bool published_;
  std::atomic<uint32_t> undecided_{kNoStep};  ///< the open step while it has no item
  std::atomic<uint32_t> dropped_below_{0};    ///< no step from here on was dropped
  std::atomic<uint32_t> profiled_from_{0};    ///< where the newest window of profiled steps begins
  std::atomic<uint32_t> profiled_below_{0};   ///< the first step behind it; kNoStep: it is open
  std::vector<std::pair<uint32_t, uint32_t>> windows_;  ///< of profiled steps, the newest last
  std::optional<Open> open_;
  std::optional<Held> held_;
  uint32_t next_ = 0;
  uint64_t changes_ = 0;
  std::vector<StepItem> pending_;
  std::vector<StepItem> taken_;  ///< at this harvest
  size_t counted_ = 0;           ///< so many of them are in the totals
  std::vector<uint32_t> dropped_;
  size_t dropped_taken_ = 0;  ///< so many of them, at the last harvest
  StepTotals totals_;
  StepTotals profiled_totals_;
  SharedPage page_;
  Statistic after_first_;  ///< durations after the first steps, without those that were profiled
};

// What a loop's begin and end of a step do: its entry in the recording that is active, its NVTX
// range, whether or not anything is recorded, and the device timing of the step. With the GIL.

/// Opens a step on the calling thread. The token says which: the recording's number (in 31 bits)
/// and the step's serial plus one. 0 when nothing is recorded, -1 when a step is open already.
/// Without a range, `begin_step_range` may begin it later.
int64_t begin_step(bool with_range = true);
void begin_step_range(int64_t token);

// A token that does not fit the active recording, or whose step is closed, changes nothing there.
void add_step_item(int64_t token, double samples);
/// The parameters have just been updated: the step ends here if nothing more belongs to it.
void note_step_update(int64_t token);
void end_step(int64_t token, bool complete, StepEnd when = StepEnd::kNow);
/// The loop is over.
void no_step_follows();
void drop_step(int64_t token, bool has_range = true);

}  // namespace pig
