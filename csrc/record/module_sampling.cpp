// SPDX-License-Identifier: Apache-2.0
#include "record/module_sampling.h"

#include <algorithm>
#include <cmath>

#include "cuda/device_gate.h"
#include "cuda/device_timing.h"
#include "hot/nvtx_range.h"
#include "record/parts.h"

namespace pig {
namespace {

/// Share of the time of all steps.
constexpr double kBudget = 0.002;
constexpr uint32_t kFirstSteps = 3;
/// Of long runs something is known, whatever it costs.
constexpr double kMostSkipped = 1000;
constexpr uint32_t kMostWeight = 0xFFFFFF;

}  // namespace

ModuleSampling ModuleSampling::instance_;

void ModuleSampling::reset(uint32_t epoch) {
  epoch_ = epoch;
  first_steps_ = kFirstSteps;
  since_last_ = 0;
  drawn_.reset();
  durations_ = {};
  costs_ = {};
}

uint32_t ModuleSampling::step_begins(uint64_t step) noexcept {
  if (parts().is_scratch()) return 0;
  is_sampled_ = false;
  skipped_step_.store(kNone, std::memory_order_relaxed);
  // Tools that show ranges show those of all steps.
  if (!is_watched_ || every_ == 1 || nvtx_attached) return 0;
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch != epoch_) reset(epoch);
  is_sampled_ = true;
  open_weight_ = weight();
  if (open_weight_ == 0) skipped_step_.store(step, std::memory_order_relaxed);
  cost_ticks_ = 0;
  begin_ticks_ = read_ticks();
  return kSampled | open_weight_ << kWeightShift;
}

uint32_t ModuleSampling::weight() {
  if (first_steps_ > 0) return 1;
  if (every_ != 0 || !cuda::DeviceTiming::instance().times_steps()) return drawn_weight();
  const cuda::Gate gate = cuda::device_gate.load(std::memory_order_relaxed);
  const bool is_timed = timing_of(gate) == cuda::Gate::kTimed;
  if (!is_timed || since_last_ + 1 < affordable_every()) return 0;
  return std::min(since_last_ + 1, kMostWeight);
}

uint32_t ModuleSampling::drawn_weight() {
  if (drawn_.is_over()) drawn_.begin_block(every_ != 0 ? every_ : affordable_every());
  return drawn_.is_drawn() ? drawn_.steps() : 0;
}

uint32_t ModuleSampling::affordable_every() const {
  const double duration = static_cast<double>(std::max<uint64_t>(durations_.value(), 1));
  const double every = std::ceil(static_cast<double>(costs_.value()) / (kBudget * duration));
  return static_cast<uint32_t>(std::clamp(every, 1.0, kMostSkipped));
}

void ModuleSampling::step_ends() noexcept {
  if (!is_sampled_ || parts().is_scratch()) return;
  is_sampled_ = false;
  durations_.add(read_ticks() - begin_ticks_);
  if (open_weight_ != 0) costs_.add(cost_ticks_);
  since_last_ = open_weight_ != 0 ? 0 : since_last_ + 1;
  if (first_steps_ > 0) {
    --first_steps_;
  } else {
    drawn_.advance();
  }
}

void ModuleSampling::step_is_dropped() noexcept {
  if (!parts().is_scratch()) is_sampled_ = false;
}

}  // namespace pig
