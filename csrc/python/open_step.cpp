// SPDX-License-Identifier: Apache-2.0
#include "python/open_step.h"

#include <mutex>
#include <optional>
#include <utility>

#include "base/threads.h"
#include "hot/active_recording.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "python/python_hooks.h"
#include "record/parts.h"
#include "record/recorder.h"
#include "record/recording_thread.h"
#include "record/step_tracker.h"

namespace pig {
namespace {

constexpr int64_t kStepIsOpen = -1;

const Phase* step_phase = nullptr;
PyObject* before_step = nullptr;

// The steps that are open, in the order in which they were opened; only those that are recorded. A
// program that enters steps and leaves none must not be slowed down: beyond these, none is noted.
constexpr int kMostListed = 16;
SpinLock open_steps_lock;
OpenStep* innermost_step = nullptr;
int steps_listed = 0;
uint64_t steps_opened = 0;

bool has_ended(uint32_t thread) {
  const ThreadState* state = parts().spans.threads().find(thread);
  return state == nullptr || state->finished.load(std::memory_order_acquire);
}

void close_step(int64_t token, uint64_t frame, bool complete) {
  if (token == kStepIsOpen) {
    nvtx_pop(step_phase->nvtx);
    end_token(frame, Closing::kEnd);
  }
  end_step(token, complete);
}

}  // namespace

bool ready_open_step() {
  step_phase = find_phase("step");
  return step_phase != nullptr;
}

void set_before_step(PyObject* function) {
  Py_XDECREF(std::exchange(before_step, function != Py_None ? Py_NewRef(function) : nullptr));
}

bool OpenStep::begin(bool with_range) {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (before_step != nullptr && !parts().is_scratch()) {
    PyObject* function = Py_NewRef(before_step);
    PyObject* result = PyObject_CallNoArgs(function);
    Py_DECREF(function);
    if (result == nullptr) return false;
    Py_DECREF(result);
  }
  if (epoch != 0) {
    run_due_hooks();
    run_step_calls();
    close_left_over();
    opener_.note();
  }
  token_ = begin_step(with_range);
  frame_ = 0;
  has_range_ = with_range;
  if (token_ == kStepIsOpen) {
    if (with_range) nvtx_push(step_phase->nvtx);
    frame_ = begin_token(*step_phase);
  }
  is_open_.store(true, std::memory_order_relaxed);
  if (token_ != 0) link();
  return true;
}

void OpenStep::show() {
  if (std::exchange(has_range_, true)) return;
  if (token_ == kStepIsOpen) {
    nvtx_push(step_phase->nvtx);
  } else {
    begin_step_range(token_);
  }
}

void OpenStep::add_item(double samples) {
  if (is_counted()) add_step_item(token_, samples);
}

void OpenStep::end(bool complete) {
  if (!is_open_.exchange(false)) return;
  unlink();
  close_step(token_, frame_, complete);
}

void OpenStep::drop() {
  if (!is_open_.exchange(false)) return;
  unlink();
  if (token_ == kStepIsOpen) {
    if (has_range_) nvtx_pop(step_phase->nvtx);
    end_token(frame_, Closing::kCancel);
  }
  drop_step(token_, has_range_);
}

void OpenStep::close_left_over() {
  const uint32_t current = active_epoch.load(std::memory_order_relaxed);
  const ThreadState* here = current != 0 ? recording_thread(current) : nullptr;
  if (here == nullptr) return;
  for (uint64_t below = ~uint64_t{0};;) {
    std::optional<Opener> opener;
    uint32_t epoch = 0;
    uint32_t thread = 0;
    {
      const std::lock_guard lock(open_steps_lock);
      const OpenStep* step = innermost_step;
      while (step != nullptr && step->number_ >= below) step = step->outer_;
      if (step == nullptr) return;
      below = step->number_;
      epoch = step->epoch_;
      thread = step->thread_;
      opener.emplace(step->opener_);
    }
    // Without the lock: any code may run, and close it or others.
    if (epoch != current || !(thread == here->serial() ? opener->is_over() : has_ended(thread)))
      continue;
    int64_t token = 0;
    uint64_t frame = 0;
    {
      const std::lock_guard lock(open_steps_lock);
      OpenStep* step = innermost_step;
      while (step != nullptr && step->number_ != below) step = step->outer_;
      if (step == nullptr || !step->is_open_.exchange(false)) continue;
      step->leave_list();
      token = step->token_;
      frame = step->frame_;
    }
    close_step(token, frame, false);
  }
}

void OpenStep::link() {
  epoch_ = active_epoch.load(std::memory_order_relaxed);
  thread_ = this_thread->serial();
  const std::lock_guard lock(open_steps_lock);
  if (steps_listed == kMostListed) return;
  ++steps_listed;
  number_ = ++steps_opened;
  outer_ = std::exchange(innermost_step, this);
  if (outer_ != nullptr) outer_->inner_ = this;
  is_linked_ = true;
}

void OpenStep::unlink() {
  {
    const std::lock_guard lock(open_steps_lock);
    leave_list();
  }
  opener_.forget();
}

void OpenStep::leave_list() {
  if (!std::exchange(is_linked_, false)) return;
  --steps_listed;
  if (outer_ != nullptr) outer_->inner_ = inner_;
  (inner_ != nullptr ? inner_->outer_ : innermost_step) = outer_;
  outer_ = inner_ = nullptr;
}

}  // namespace pig
