// SPDX-License-Identifier: Apache-2.0
#include "record/step_detector.h"

#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace pig {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Stands among the numbers of optimizers for a backward pass that is an update.
constexpr uint64_t kBackward = std::numeric_limits<uint64_t>::max();

}  // namespace

void StepDetector::starts_loader(uint64_t loader) {
  if (!counts_here()) return;
  come_back(loader);
  // A loop that fetches ahead starts its loader again within a step. Any other has only looked at
  // what it fetched before.
  if (state_ == State::kWaiting && !waits_with_items_of_the_loop()) drop();
}

void StepDetector::asks_for_item(uint64_t loader, bool grad_enabled) {
  if (!hears(grad_enabled ? Shown::kItem : Shown::kNothing)) return;
  come_back(loader);
  is_fetching_ = grad_enabled;
  if (state_ == State::kWaiting) {
    // What begins a step before its item is asked for does so each time, or it was not part of the
    // loop.
    const bool began_without = feeders_.empty() && !had_unfed_steps_;
    const bool was_evaluated = !waiting_items_.empty() && was_evaluated_;
    if (!grad_enabled || began_without || was_evaluated) drop();
  }
  if (!grad_enabled) return;
  open();
  if (state_ == State::kWaiting) feeders_.add(loader);
  if (state_ == State::kTraining) port_.step_is_fed(loader);
}

bool StepDetector::got_item(double samples) {
  if (!counts_here() || !is_fetching_) return false;
  if (state_ == State::kWaiting) {
    add_waiting_item(samples);
  } else if (state_ == State::kTraining) {
    port_.step_item(token_, samples);
  } else {
    return false;
  }
  return true;
}

void StepDetector::got_none(uint64_t loader) {
  if (!counts_here()) return;
  if (state_ == State::kWaiting && !waits_with_items_of_the_loop()) {
    drop();
  } else if ((state_ == State::kWaiting || state_ == State::kTraining) &&
             feeders_.contains(loader)) {
    is_exhausted_ = true;
    port_.step_note_update(token_);
  }
}

void StepDetector::clears_gradients() {
  if (!hears(Shown::kPass)) return;
  if (was_cleared_) end_if_done();
  open();
  if (state_ != State::kUpdated) was_cleared_ = true;
}

void StepDetector::follows_update() {
  if (counts_here() && state_ == State::kUpdated) port_.step_note_update(token_);
}

void StepDetector::copies_to_device() {
  if (counts_here() && end_if_done()) open();
}

void StepDetector::runs_forward() {
  if (!hears(Shown::kPass)) return;
  end_if_done();
  open();
  was_run_ = true;
}

void StepDetector::evaluates(bool in_eval_mode) {
  if (!counts_here()) return;
  // Without gradients it may be a target network, for an optimizer that does not always step.
  if (state_ == State::kUpdated && (in_eval_mode ? all_have_updated() : is_over())) {
    end(true, StepEnd::kNowUnlessLast);
  } else if (state_ == State::kTraining && is_exhausted_) {
    end(false, StepEnd::kAtUpdate);
  }
  was_evaluated_ = true;
}

void StepDetector::runs_backward() {
  if (!hears(Shown::kPass)) return;
  end_if_updated_by(kBackward);
  end_if_done();
  make_certain();
}

void StepDetector::differentiates() {
  if (port_.optimizer_count() == 0) return runs_backward();
  if (!hears(Shown::kPass)) return;
  end_if_done();
  if (!was_evaluated_) open();
  // What follows the loop, and an evaluation of forces, have such derivatives, too.
  if (was_run_ && !feeders_.empty()) make_certain();
}

void StepDetector::ends_backward(bool has_updated) {
  if (!counts_here() || (!has_updated && port_.optimizer_count() != 0)) return;
  optimizer_seen_ = optimizer_seen_.value_or(false) || has_updated;
  note_update(kBackward);
}

void StepDetector::begins_update(uint64_t optimizer) {
  if (!hears(Shown::kUpdate)) return;
  if (some_lag_) end_if_done();
  end_if_updated_by(optimizer);
  make_certain();
}

void StepDetector::ends_update(uint64_t optimizer) {
  if (!counts_here()) return;
  optimizer_seen_ = true;
  note_update(optimizer);
}

void StepDetector::has_stepped(uint64_t optimizer) {
  if (!is_left_alone_) add_update(optimizer);
}

void StepDetector::finish() {
  if (state_ == State::kWaiting) {
    // A model that is run on what no step has trained on is only looked at, after the loop.
    const bool may_train = is_fed_by_the_loop() || (trained_on_.empty() && !had_unfed_steps_);
    if (!waiting_items_.empty() && was_run_ && may_train) {
      make_certain();
    } else {
      drop();
    }
  }
  if (state_ == State::kUpdated) {
    end(true, StepEnd::kAtUpdate);
  } else if (state_ == State::kTraining) {
    end(false, is_exhausted_ ? StepEnd::kAtUpdate : StepEnd::kNow);
  }
  port_.no_step_follows();
}

void StepDetector::leave_alone() {
  if (is_left_alone_) return;
  is_left_alone_ = true;
  finish();
}

bool StepDetector::counts_here() const {
  return !is_left_alone_ && static_cast<uint64_t>(pthread_self()) == thread_;
}

/// Whether the calling thread trains, if this is what it shows. It is the one that has shown most.
bool StepDetector::hears(Shown shown) {
  if (is_left_alone_) return false;
  if (!counts_here()) {
    const bool is_update = shown == Shown::kUpdate;
    if (is_update && ++updates_elsewhere_ > kMostUpdatesElsewhere) finish();
    const bool is_between_steps = state_ == State::kClosed && changes_ == 0;
    if (shown <= shown_ && !(is_update && is_between_steps)) {
      was_passed_over_ = true;
      return false;
    }
    thread_ = static_cast<uint64_t>(pthread_self());
    if (state_ == State::kWaiting) {
      drop();
    } else if (state_ != State::kClosed) {
      end(state_ == State::kUpdated, StepEnd::kAtUpdate);  // it was certain, and is counted
      if (is_left_alone_) return false;
    }
    lacks_begin_ = std::exchange(was_passed_over_, false);
  }
  shown_ = std::max(shown_, shown);
  updates_elsewhere_ = 0;
  return true;
}

/// Whether a step has trained on a loader of this one before.
bool StepDetector::is_fed_by_the_loop() const {
  return std::any_of(feeders_.begin(), feeders_.end(),
                     [this](uint64_t loader) { return trained_on_.contains(loader); });
}

/// Whether what was fetched is for training.
bool StepDetector::waits_with_items_of_the_loop() const {
  return !waiting_items_.empty() && !was_evaluated_ && is_fed_by_the_loop();
}

/// A loader is asked for something. Another than those of the step may serve what follows the loop.
void StepDetector::come_back(uint64_t loader) {
  if (state_ == State::kUpdated) {
    returns_to_loader_ |= !feeders_.empty();
    end(true, feeders_.contains(loader) ? StepEnd::kNow : StepEnd::kNowUnlessLast);
  } else if (state_ == State::kTraining && is_exhausted_) {
    end(false, StepEnd::kAtUpdate);
  }
}

/// The loop goes on training after an update. With a loader, that may be to log something before
/// the loop comes back, or the turn of another optimizer; the next update will tell.
///
/// Returns whether the step has ended.
bool StepDetector::end_if_done() {
  const bool waits_for_loader = !feeders_.empty() && returns_to_loader_;
  if (state_ != State::kUpdated || waits_for_loader || !is_over()) return false;
  end(true, StepEnd::kNowUnlessLast);
  return true;
}

/// A step has at most one update of each optimizer.
void StepDetector::end_if_updated_by(uint64_t updater) {
  if (state_ != State::kUpdated || !has_updated(updater)) return;
  returns_to_loader_ &= feeders_.empty();
  some_lag_ = some_lag_ || updates_ < port_.optimizer_count();
  const bool was_cleared = was_cleared_;
  end(true);
  if (open()) was_cleared_ = was_cleared;  // by what the step before already has
}

/// Whether what comes now, after an update, belongs to the next iteration of the loop. One
/// optimizer that does not step in each is told by where the program is.
bool StepDetector::is_over() {
  if (some_lag_ && updates_ < port_.optimizer_count())
    if (const std::optional<bool> goes_on = port_.goes_on_after_update()) return !*goes_on;
  return all_have_updated();
}

/// Whether there are as many updates as in the step before, or at first one of each.
bool StepDetector::all_have_updated() const {
  return updates_ >= (updates_per_step_ != 0 ? updates_per_step_ : port_.optimizer_count());
}

bool StepDetector::has_updated(uint64_t updater) const {
  const auto found = last_update_.find(updater);
  return found != last_update_.end() && found->second == steps_;
}

void StepDetector::add_update(uint64_t updater) {
  if (last_update_.size() == kMostUpdaters && !last_update_.contains(updater)) {
    if (updates_ == kMostUpdaters) return;
    // A program may make optimizers anew in each step. Those of earlier steps are not asked for.
    std::erase_if(last_update_, [this](const auto& entry) { return entry.second != steps_; });
  }
  if (std::exchange(last_update_[updater], steps_) != steps_) ++updates_;
}

void StepDetector::note_update(uint64_t updater) {
  // What began before the step was ended for good, by finish(), is no update of a step.
  if (state_ == State::kClosed) return;
  add_update(updater);
  state_ = State::kUpdated;
  port_.step_note_update(token_);
  if (some_lag_) port_.update_is_here();
}

void StepDetector::make_certain() {
  open();
  if (state_ != State::kWaiting) return;
  for (const uint64_t loader : feeders_) {
    if (loader != 0) trained_on_.add(loader);
    port_.step_is_fed(loader);
  }
  state_ = State::kTraining;
  if (waiting_items_.empty()) port_.step_item(token_, kUnknown);
  for (const auto& [samples, count] : waiting_items_) {
    for (uint64_t i = 0; i < count; ++i) port_.step_item(token_, samples);
  }
}

void StepDetector::add_waiting_item(double samples) {
  const auto same = [](double samples) {
    return [samples](const auto& kind) {
      return kind.first == samples || (std::isnan(kind.first) && std::isnan(samples));
    };
  };
  auto kind = std::find_if(waiting_items_.begin(), waiting_items_.end(), same(samples));
  if (kind == waiting_items_.end() && waiting_items_.size() >= kMostKindsOfItems) {
    samples = kUnknown;
    kind = std::find_if(waiting_items_.begin(), waiting_items_.end(), same(samples));
  }
  if (kind == waiting_items_.end()) {
    waiting_items_.emplace_back(samples, 1);
  } else {
    ++kind->second;
  }
}

/// Opens a step if none is open, and returns whether it has.
bool StepDetector::open() {
  if (state_ != State::kClosed || is_left_alone_) return false;
  ++changes_;
  const int64_t token = port_.step_begin();
  --changes_;
  if (state_ != State::kClosed || is_left_alone_) {  // Python code ran in it
    port_.step_drop(token);
    return false;
  }
  token_ = token;
  state_ = State::kWaiting;
  waiting_items_.clear();
  ++steps_;
  updates_ = 0;
  was_cleared_ = was_run_ = was_evaluated_ = is_exhausted_ = false;
  return true;
}

void StepDetector::end(bool complete, StepEnd when) {
  had_unfed_steps_ |= feeders_.empty();
  if (updates_ != 0) updates_per_step_ = updates_;
  state_ = State::kClosed;
  feeders_.clear();
  port_.step_end(token_, complete && !std::exchange(lacks_begin_, false), when);
  ++changes_;
  port_.step_has_ended();
  --changes_;
}

void StepDetector::drop() {
  state_ = State::kClosed;
  feeders_.clear();
  port_.step_drop(token_);
}

}  // namespace pig
