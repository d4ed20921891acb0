// SPDX-License-Identifier: Apache-2.0
//
// What the automatic phases of a program share: whether they are on, which activity the thread is
// in, and the detector of steps, which the activities are reported to.
//
// An activity (a forward pass, a backward pass, ...) is a phase. What it calls is part of it:
// inside a forward pass no submodule is one of its own. An optimizer's step is the exception, as
// its closure may run forward and backward passes; they nest in it, and are no step of the loop.
//
// All of it happens with the GIL, between two instructions of the program.
#pragma once

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "auto/eval_calls.h"
#include "auto/program_place.h"
#include "base/ticks.h"
#include "python/object_table.h"
#include "python/phase_type.h"
#include "record/step_detector.h"

namespace pig {

/// What is asked of torch and of Python; references that are kept for good.
struct LoopQuestions {
  PyObject* loss_type;        ///< the class of modules that compute a loss
  PyObject* is_grad_enabled;  ///< () -> bool
  PyObject* has_parameters;   ///< (module) -> bool, for modules that are not plain
  PyObject* samples_of;       ///< (item) -> float, for items that are not plain
  PyObject* loader_options;   ///< (loader) -> a tuple, of which there are few, or None
  /// (optimizer) -> a number that is another one after an update
  PyObject* times_written;
  PyObject* is_trained_in_eval_mode;  ///< (module) -> bool, after a backward pass
  /// (code, instruction, later instruction) -> bool, whether one iteration may have both
  PyObject* are_of_one_iteration;

  bool operator==(const LoopQuestions&) const = default;
};

/// The session whose activity the calling thread is in. It is a number, so that a flag which was
/// not taken back means nothing to the next session.
extern thread_local uint64_t activity_session;
/// Its phase, where the thread is in one.
extern thread_local const Phase* activity_phase;
/// That of the last `begin`.
PIG_HOT extern uint64_t session_number;

class LoopSession final : private StepPort {
 public:
  static LoopSession& instance();

  /// `on_step_end`: called without arguments after each step that was placed automatically, or
  /// None.
  void begin(const LoopQuestions& questions, uint64_t main_thread, PyObject* on_step_end,
             PyObject* on_first_call);
  /// Ends the step and the steps of optimizers that are open. Calls that go on end without effect.
  void end();

  bool is_active() const { return is_active_; }
  /// Whether what the program calls now is none of our business.
  bool passes_by() const { return activity_session == session_number || !is_active_; }

  // Questions. None of them leaves an error set.
  bool is_grad_enabled();
  bool has_parameters(PyObject* module);
  bool is_loss(PyObject* module) const;
  /// Whether its class is one of those that `note_metric_type` was given.
  bool is_metric(PyObject* module) const;
  /// A class of modules that are metrics, which no loop trains; kept for good. Of very many the
  /// first count.
  void note_metric_type(PyObject* type);
  double samples_of(PyObject* item);
  /// Of a module in eval mode that is called with gradients enabled.
  bool is_trained_in_eval_mode(PyObject* module) { return eval_calls_.is_of_trained(module); }
  /// After a backward pass.
  void look_at_eval_calls();
  /// Within a call that is this phase: the first time, the program's line is noted.
  void note_line(const Phase& phase);

  StepDetector& detector() { return *detector_; }
  /// Whether an optimizer has stepped. Nothing where there was no update at all.
  std::optional<bool> optimizer_seen() const {
    return detector_ != nullptr ? detector_->optimizer_seen() : std::nullopt;
  }

  // Loaders and optimizers as the detector knows them; 0 where an object can't be told.
  struct Iterator {
    uint64_t loader = 0;
    bool is_batched = false;
  };
  uint64_t number_of_loader(PyObject* loader);
  /// An item for training is asked for, of a loader with this number, while the program opens its
  /// steps itself.
  void draws_from(uint64_t loader);
  void note_iterator(PyObject* iterator, Iterator of);
  Iterator iterator(PyObject* iterator);
  /// How loaders with the same options were used since `forget_loader_uses`.
  struct LoaderUse {
    PyObject* options;   ///< what `loader_options` has returned; owned, for good
    uint64_t steps = 0;  ///< about so many items for steps
    uint64_t draws = 0;
  };
  const std::vector<LoaderUse>& loader_uses() const { return loader_uses_; }
  void forget_loader_uses();
  uint64_t number_of_optimizer(PyObject* optimizer);
  /// "optimizer", "optimizer 2", ...: numbered as they first step. nullptr where there is no room
  /// for a name.
  const Phase* phase_of_optimizer(PyObject* optimizer);

  // Steps of optimizers, whose phases are open while other activities come and go.
  bool is_updating();
  void begin_update(PyObject* optimizer);
  void end_update(PyObject* optimizer);

  // Updates that can't be observed.
  struct Written {
    uint64_t optimizer;
    uint64_t times;
  };
  /// How often the parameters of each optimizer were written to; of some of them, where there are
  /// very many.
  std::vector<Written> written_to();
  /// Tells the detector which optimizers have written to their parameters since.
  void note_updates_since(const std::vector<Written>& before);

  /// Whether optimizers have stepped in the backward pass of the training thread.
  bool has_updated_in_backward = false;

  /// An error that was raised by what we have called is dropped, if it is an Exception; else it is
  /// the program's, such as the KeyboardInterrupt of a signal handler, and is kept.
  void take_error();
  /// What a question has given; null where it has raised, and that error is taken.
  pybind11::object answer(PyObject* result);
  /// Sets the error that was kept. False where there was none.
  bool raise_kept_error();
  /// Something could not be remembered: from here on no steps are placed.
  void fail();
  bool has_failed() const { return has_failed_; }

 private:
  struct Update {
    unsigned long thread;
    const Phase* phase;
    uint64_t token;
    PyFrameObject* frame;  ///< of the function that will end it
  };
  struct Optimizer {
    uint64_t number = 0;
    const Phase* phase = nullptr;
  };

  LoopSession() = default;
  void end_innermost_update(unsigned long thread);
  uint64_t use_of(PyObject* loader);

  int64_t step_begin() override;
  void step_is_fed(uint64_t loader) override;
  size_t optimizer_count() override;
  void step_has_ended() override;
  void update_is_here() override { update_place_.take(); }
  std::optional<bool> goes_on_after_update() override;

  bool is_active_ = false;
  bool has_failed_ = false;
  LoopQuestions ask_{};
  PyObject* on_step_end_ = nullptr;
  PyObject* on_first_call_ = nullptr;
  std::unique_ptr<StepDetector> detector_;
  int callbacks_ = 0;  ///< of the detector's that run Python code now
  uint64_t last_number_ = 0;
  ObjectTable<uint64_t> loaders_;
  std::vector<LoaderUse> loader_uses_;
  ObjectTable<Iterator> iterators_;
  ObjectTable<Optimizer> optimizers_;
  std::array<PyTypeObject*, 8> metric_types_{};
  EvalCalls eval_calls_;
  ProgramPlace update_place_;
  struct SeenApart {
    ProgramPlace::Apart places;
    bool are_of_one_iteration;
  };
  std::vector<SeenApart> seen_apart_;
  std::vector<Update> updates_;  ///< outermost first; of all threads
  PyObject* kept_error_ = nullptr;
  std::vector<bool> noted_;  ///< by number of a phase, whether its line is
};

/// The phase of this name; nullptr where there is no room for it.
const Phase* phase_named(const char* name);

/// The begin of an activity on this thread, as a token for its end.
uint64_t begin_activity(const Phase& phase);
void end_activity(const Phase& phase, uint64_t token);

}  // namespace pig
