// SPDX-License-Identifier: Apache-2.0
//
// In which steps modules are timed.
//
// Most of what a watched module costs is spent by torch, which calls each mark of a backward pass
// with a Python object. So modules can be timed in some of the steps only. In the others, a call
// of a module is passed through after a comparison.
//
// Which steps these are is drawn by chance, one of every k (base/drawn_step.h). A step that is
// timed stands for k, which is noted with it, so that what is made of the times of all such steps
// is true of all steps, whatever k was. The first few steps, which are unlike the others, are all
// timed, and stand for themselves.
//
// k is given, or such that what the modules cost host and device is a small share of the time.
// Where steps are timed on a device, it is these that modules are timed in, as far as this share
// allows, so that their device times are known too; such a step stands for those since the last
// one.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/drawn_step.h"
#include "base/recent_median.h"
#include "base/ticks.h"
#include "hot/active_recording.h"

namespace pig {

class ModuleSampling {
 public:
  /// The flags of a step: modules were timed in some steps, as of now; and for how many steps this
  /// one stands, 0 where it was not among them.
  static constexpr uint32_t kSampled = 2;
  static constexpr uint32_t kWeightShift = 8;

  static ModuleSampling& instance() { return instance_; }

  // --- with the GIL ---

  /// From the next step on, modules are timed in one of every `every` steps; 0: as often as the
  /// budget allows.
  void choose(uint32_t every) { every_ = every; }
  void set_watched(bool watched) { is_watched_ = watched; }
  /// Returns the flags of the step.
  uint32_t step_begins(uint64_t step) noexcept;
  void step_ends() noexcept;
  /// There was no such step: the turn that it had is the next one's.
  void step_is_dropped() noexcept;

  /// Whether it is to be known what the modules cost.
  bool is_measuring() const { return every_ == 0; }
  void add_cost(uint64_t ticks) { cost_ticks_ += ticks; }

  /// Whether modules are not timed now.
  bool is_skipped_step() const {
    return open_step.load(std::memory_order_relaxed) ==
           skipped_step_.load(std::memory_order_relaxed);
  }

 private:
  static constexpr uint64_t kNone = kNoOpenStep - 1;  // no step has this number

  void reset(uint32_t epoch);
  /// For how many steps the one that begins stands.
  uint32_t weight();
  uint32_t drawn_weight();
  uint32_t affordable_every() const;

  PIG_HOT static ModuleSampling instance_;

  std::atomic<uint64_t> skipped_step_{kNone};
  uint32_t every_ = 1;
  bool is_watched_ = false;
  bool is_sampled_ = false;  ///< of the open step: it has flags
  uint32_t epoch_ = 0;
  uint32_t first_steps_ = 0;  ///< that are still to be timed in any case
  uint32_t open_weight_ = 0;
  uint32_t since_last_ = 0;  ///< steps, by those that follow the device

  DrawnStep drawn_;

  uint64_t begin_ticks_ = 0;
  uint64_t cost_ticks_ = 0;
  RecentMedian durations_;
  RecentMedian costs_;
};

/// Adds the time of a block to what modules cost, `times` over.
class ModuleCost {
 public:
  explicit ModuleCost(uint64_t times = 1)
      : times_(times), begin_(ModuleSampling::instance().is_measuring() ? read_ticks() : 0) {}
  ~ModuleCost() {
    if (begin_ != 0) ModuleSampling::instance().add_cost(times_ * (read_ticks() - begin_));
  }
  ModuleCost(const ModuleCost&) = delete;
  ModuleCost& operator=(const ModuleCost&) = delete;

 private:
  uint64_t times_;
  uint64_t begin_;
};

}  // namespace pig
