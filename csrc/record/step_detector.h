// SPDX-License-Identifier: Apache-2.0
//
// Where one step ends and the next begins, told from what a training loop does.
//
//   CLOSED --item, zero_grad, forward--> WAITING --backward, update--> TRAINING --update--> UPDATED
//      `------------backward, update--------------------^                                      |
//      ^----------------------------- the loop has come back ---------------------------------'
//
// A step that is WAITING may turn out to be none: what it held was for validation, or only looked
// at. From the first backward pass on it is certain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "record/step_tracker.h"

namespace pig {

/// Where steps are opened and closed: in the active recording (`begin_step` and what follows it),
/// or a test's own.
class StepPort {
 public:
  virtual ~StepPort() = default;

  virtual int64_t step_begin() = 0;
  virtual void step_item(int64_t token, double samples) { add_step_item(token, samples); }
  virtual void step_note_update(int64_t token) { note_step_update(token); }
  virtual void step_end(int64_t token, bool complete, StepEnd when) {
    end_step(token, complete, when);
  }
  virtual void no_step_follows() { pig::no_step_follows(); }
  virtual void step_drop(int64_t token) { drop_step(token); }

  /// A step that trains was fed by a loader: at least once for each loader and step.
  virtual void step_is_fed(uint64_t) {}

  /// How many optimizers the program has made that still exist.
  virtual size_t optimizer_count() = 0;
  /// After each step that ended, while none is open.
  virtual void step_has_ended() = 0;

  /// The update that was just made is the one that `goes_on_after_update` asks for.
  virtual void update_is_here() {}
  /// Whether what the program does now comes behind that update in the same iteration of its loop.
  /// Nothing where that can't be told.
  virtual std::optional<bool> goes_on_after_update() { return std::nullopt; }
};

/// A set of the numbers that were added last. When there are too many, the one whose addition is
/// longest ago goes. For few numbers, of which the same are added again and again: it is searched
/// from the most recent one on.
class RecentNumbers {
 public:
  explicit RecentNumbers(size_t most) : most_(most) {}

  bool empty() const { return numbers_.empty(); }
  bool contains(uint64_t number) const {
    return std::find(numbers_.rbegin(), numbers_.rend(), number) != numbers_.rend();
  }
  auto begin() const { return numbers_.begin(); }  ///< the one whose addition is longest ago
  auto end() const { return numbers_.end(); }

  void add(uint64_t number) {
    const auto found = std::find(numbers_.rbegin(), numbers_.rend(), number);
    if (found != numbers_.rend()) {
      std::rotate(found.base() - 1, found.base(), numbers_.end());
    } else if (numbers_.size() < most_) {
      numbers_.push_back(number);
    } else {
      std::rotate(numbers_.begin(), numbers_.begin() + 1, numbers_.end());
      numbers_.back() = number;
    }
  }

  void clear() { numbers_.clear(); }

 private:
  size_t most_;
  std::vector<uint64_t> numbers_;  ///< the most recent one last
};

/// The state of the loop. Its methods are called before the activity they name, or after it where
/// they say so, and only for what is no part of another activity.
///
/// Loaders and optimizers are named by numbers that are never used again. Only the training thread
/// counts. At first that is the one given, until another has shown more of a loop: an item is less
/// than a pass or cleared gradients, and these are less than an update. Once there was an update,
/// another thread takes over with one of its own while no step is open, or with several during
/// which the training thread shows nothing. If earlier calls of that thread were passed over,
/// then the beginning of its first step is missing, and the step is incomplete.
///
/// From any thread, with the GIL. `step_begin` and `step_has_ended` may run Python code, so during
/// them this or another thread may call anything here: the state is whole before they are called,
/// and looked at anew after them. Methods throw nothing but std::bad_alloc, if the port throws
/// nothing. They allocate nothing in a loop whose steps are like those before.
class StepDetector {
 public:
  /// Loaders that a step is fed by, and that steps have trained on. A federated simulation has one
  /// for each of its clients, often hundreds. A loader that is forgotten, because steps have
  /// trained on as many others since, is treated as on its first use: what is fetched from it and
  /// not trained on is no step.
  static constexpr size_t kMostLoaders = 1024;
  /// Of optimizers that update in one step. Those that step within the backward pass are made one
  /// per parameter, of which large models have thousands.
  static constexpr size_t kMostUpdaters = 16384;
  /// Different numbers of samples among the items of a step that is not certain. There are two
  /// where batches are alike but for the last, and some dozens where they are made by length. The
  /// items of any further ones have an unknown number of samples.
  static constexpr size_t kMostKindsOfItems = 256;
  /// Updates on other threads during which the training thread does nothing, and still is the one:
  /// of two that train at the same time, one may wait for a core for some hundred short steps.
  static constexpr size_t kMostUpdatesElsewhere = 256;

  /// `thread`: the training thread until another has shown more, as its pthread_self().
  StepDetector(StepPort& port, uint64_t thread) : port_(port), thread_(thread) {}
  StepDetector(const StepDetector&) = delete;
  StepDetector& operator=(const StepDetector&) = delete;

  // Loader 0: one that is not known.

  /// A loop over a loader begins.
  void starts_loader(uint64_t loader);
  void asks_for_item(uint64_t loader, bool grad_enabled);
  /// After the loader has answered. NaN: an unknown number of samples. Returns whether the item is
  /// one of the open step.
  bool got_item(double samples);
  /// After the loader had no further item.
  void got_none(uint64_t loader);

  /// An optimizer or a module clears its gradients.
  void clears_gradients();
  /// After gradients were clipped or cleared, or a scheduler has stepped: if that was after the
  /// update, then it belongs to it.
  void follows_update();
  /// A tensor goes to a device.
  void copies_to_device();
  /// A module that is being trained runs.
  void runs_forward();
  /// A module runs that is not being trained, in eval mode or else without gradients.
  void evaluates(bool in_eval_mode = true);

  void runs_backward();
  /// Derivatives are asked for that are accumulated nowhere (`torch.autograd.grad`).
  void differentiates();
  /// After a backward pass. `has_updated`: optimizers have stepped in it. Where there is no
  /// optimizer, the program updates its parameters itself, which can't be seen, after each of them.
  void ends_backward(bool has_updated);

  // The caller counts an optimizer before it names it here for the first time.

  /// An optimizer's step, or one that a gradient scaler may leave out.
  void begins_update(uint64_t optimizer);
  void ends_update(uint64_t optimizer);
  /// After an optimizer has stepped within the backward pass of the training thread, on any thread.
  void has_stepped(uint64_t optimizer);

  /// The recording ends, or what is recorded is no longer ours to say.
  void finish();
  /// The program opens a step itself: from here on it alone does.
  void leave_alone();

  /// Whether the program opens its steps itself.
  bool is_left_alone() const { return is_left_alone_; }
  /// Whether what the calling thread does counts.
  bool counts_here() const;
  /// Whether an optimizer has stepped. Nothing where there was no update at all.
  std::optional<bool> optimizer_seen() const { return optimizer_seen_; }

 private:
  enum class State { kClosed, kWaiting, kTraining, kUpdated };
  enum class Shown { kNothing, kItem, kPass, kUpdate };

  bool hears(Shown shown);
  bool is_fed_by_the_loop() const;
  bool waits_with_items_of_the_loop() const;
  void come_back(uint64_t loader);
  bool end_if_done();
  void end_if_updated_by(uint64_t updater);
  bool is_over();
  bool all_have_updated() const;
  bool has_updated(uint64_t updater) const;
  void add_update(uint64_t updater);
  void note_update(uint64_t updater);
  void make_certain();
  void add_waiting_item(double samples);
  bool open();
  void end(bool complete, StepEnd when = StepEnd::kNow);
  void drop();

  StepPort& port_;
  uint64_t thread_;
  State state_ = State::kClosed;
  int64_t token_ = 0;
  bool is_left_alone_ = false;
  std::optional<bool> optimizer_seen_;
  Shown shown_ = Shown::kNothing;  ///< by the training thread
  bool was_passed_over_ = false;   ///< another thread, since one took over
  size_t updates_elsewhere_ = 0;   ///< since the training thread last showed something
  int changes_ = 0;                ///< of the state, during which Python code runs
  bool lacks_begin_ = false;       ///< the open step, or the next one

  // Of the open step.
  RecentNumbers feeders_{kMostLoaders};  ///< the loaders that were asked for an item
  /// How many have so many samples, as there may be any number of them.
  std::vector<std::pair<double, uint64_t>> waiting_items_;
  bool is_fetching_ = false;
  bool was_cleared_ = false;
  bool was_run_ = false;
  bool was_evaluated_ = false;
  bool is_exhausted_ = false;
  size_t updates_ = 0;  ///< of different optimizers

  // Of the loop.
  bool returns_to_loader_ = true;  ///< after the first update that follows an item
  bool had_unfed_steps_ = false;
  size_t updates_per_step_ = 0;  ///< 0: no step has ended yet
  bool some_lag_ = false;        ///< an optimizer has stepped twice before all others have
  RecentNumbers trained_on_{kMostLoaders};
  uint64_t steps_ = 0;  ///< opened so far
  /// By optimizer the last step that it has updated in. Never emptied for a step: those like the
  /// ones before allocate nothing.
  std::unordered_map<uint64_t, uint64_t> last_update_;
};

}  // namespace pig
