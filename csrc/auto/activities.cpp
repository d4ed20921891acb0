// SPDX-License-Identifier: Apache-2.0
#include "auto/activities.h"

#include <cmath>
#include <utility>

#include "auto/loop_session.h"
#include "base/throwing.h"
#include "hooks/call_hook.h"
#include "hooks/tensor_inspector.h"
#include "hot/nvtx_range.h"
#include "python/batch_readings.h"
#include "python/phase_use.h"
#include "python/step_iterator.h"

namespace pig {
namespace {

/// Functions of torch whose calls are activities: each is a phase, unless it is part of another.
///
/// What a kind of activity overrides may throw bad_alloc, and calls Python code only by way of the
/// session's questions.
class Activity : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override;
  bool ends(ObservedCall& call, PyObject* result) override;

 protected:
  ~Activity() = default;

  /// nullptr: the call is no activity.
  virtual const Phase* phase_of(LoopSession& session, const ObservedCall& call) = 0;
  /// Tells the detector before the phase begins, so that it is in the right step. Not within the
  /// step of an optimizer.
  virtual void announce(LoopSession&, const ObservedCall&) {}
  /// While the phase is still open.
  virtual void ending(LoopSession&, const ObservedCall&, PyObject*) {}
  virtual void ended(LoopSession&, const ObservedCall&, PyObject*) {}
};

Observing Activity::begins(ObservedCall& call) {
  if (PIG_LIKELY(activity_session == session_number)) return Observing::ignored;
  LoopSession& session = LoopSession::instance();
  if (!session.is_active() || is_compiling()) return Observing::ignored;
  const bool has_memory = try_allocating([&] {
    call.subject = phase_of(session, call);
    call.session = session_number;
    if (call.subject == nullptr) return;
    if (!session.is_updating()) announce(session, call);
    session.note_line(*static_cast<const Phase*>(call.subject));
  });
  if (!has_memory) session.fail();
  if (!has_memory || call.subject == nullptr) return Observing::ignored;
  if (session.raise_kept_error()) return Observing::failed;
  call.token = begin_activity(*static_cast<const Phase*>(call.subject));
  return Observing::begun;
}

bool Activity::ends(ObservedCall& call, PyObject* result) {
  LoopSession& session = LoopSession::instance();
  const bool is_of_session = session.is_active() && call.session == session_number;
  if (is_of_session && !try_allocating([&] { ending(session, call, result); })) session.fail();
  end_activity(*static_cast<const Phase*>(call.subject), call.token);
  if (is_of_session && !try_allocating([&] { ended(session, call, result); })) session.fail();
  return !session.raise_kept_error();
}

/// Phases "forward", "eval", "no_grad", "loss" and "metrics": the outermost call of a module. In
/// eval mode it is "eval", whatever the mode is for, unless the module is known to be trained in it
/// (eval_calls.h), and in training mode without gradients "no_grad": a rollout, a target network, a
/// sample. Which calls are an evaluation the analysis says, as it takes more than one call to tell.
class ModuleCall final : public Activity {
  const Phase* phase_of(LoopSession& session, const ObservedCall& call) override {
    if (call.self == nullptr) return nullptr;
    if (session.is_loss(call.self)) return loss_;
    if (session.is_metric(call.self)) return metrics_;
    const bool is_grad_enabled = session.is_grad_enabled();
    if (is_in_training_mode(call.self)) return is_grad_enabled ? forward_ : no_grad_;
    return is_grad_enabled && session.is_trained_in_eval_mode(call.self) ? forward_ : eval_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    // A loss, a metric or a transform is in training mode in a validation loop too.
    if (call.subject == loss_ || call.subject == metrics_) return;
    if (!session.has_parameters(call.self)) return;
    if (call.subject == forward_) {
      session.detector().runs_forward();
    } else {
      session.detector().evaluates(call.subject == eval_);
    }
  }

  static bool is_in_training_mode(PyObject* module) {
    static PyObject* const name = PyUnicode_InternFromString("training");
    PyObject* names = PyObject_GenericGetDict(module, nullptr);
    PyObject* mode = names != nullptr ? PyDict_GetItemWithError(names, name) : nullptr;
    // A module that torch.compile has made has the mode of the one inside. One whose own __init__
    // was never run has none.
    mode = mode != nullptr ? Py_NewRef(mode) : PyObject_GetAttr(module, name);
    PyErr_Clear();
    const bool is_in_it = mode == nullptr || mode == Py_True;
    Py_XDECREF(mode);
    Py_XDECREF(names);
    return is_in_it;
  }

  const Phase* const forward_ = phase_named("forward");
  const Phase* const eval_ = phase_named("eval");
  const Phase* const no_grad_ = phase_named("no_grad");
  const Phase* const loss_ = phase_named("loss");
  const Phase* const metrics_ = phase_named("metrics");
};

/// Phase "data start": the start of a loop over a DataLoader, and of its workers.
class LoaderStart final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall& call) override {
    return is_timing_data || call.self == nullptr ? nullptr : start_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    session.detector().starts_loader(session.number_of_loader(call.self));
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject* iterator) override {
    if (iterator == nullptr) return;
    const auto sampler = session.answer(PyObject_GetAttrString(call.self, "batch_sampler"));
    session.note_iterator(iterator,
                          {session.number_of_loader(call.self), sampler && !sampler.is_none()});
  }

  const Phase* const start_ = phase_named("data start");
};

/// Phase "data", waiting for the next item of a loader, and "data end", finding that there is none.
class NextItem final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall& call) override {
    return is_timing_data || call.self == nullptr ? nullptr : data_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    const uint64_t loader = session.iterator(call.self).loader;
    const bool is_grad_enabled = session.is_grad_enabled();
    session.detector().asks_for_item(loader, is_grad_enabled);
    if (is_grad_enabled && session.detector().is_left_alone()) session.draws_from(loader);
  }

  void ending(LoopSession& session, const ObservedCall& call, PyObject* item) override {
    if (item != nullptr || PyErr_ExceptionMatches(PyExc_StopIteration) == 0) return;
    if (none_ != nullptr) rename_token(call.token, *none_);
    session.detector().got_none(session.iterator(call.self).loader);
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject* item) override {
    if (item == nullptr) return;
    // What the loader did not batch has no number of samples.
    const bool is_batched = session.iterator(call.self).is_batched;
    if (session.detector().got_item(is_batched ? session.samples_of(item) : NAN)) read_batch(item);
  }

  const Phase* const data_ = phase_named("data");
  const Phase* const none_ = phase_named("data end");
};

/// Phase "backward": autograd's engine runs, for `backward()` and for `torch.autograd.grad`.
class BackwardPass final : public Activity {
  const Phase* phase_of(LoopSession&, const ObservedCall&) override { return phase_; }

  void announce(LoopSession& session, const ObservedCall& call) override {
    if (accumulates(call)) {
      session.detector().runs_backward();
    } else {
      session.detector().differentiates();
    }
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject*) override {
    if (accumulates(call)) session.look_at_eval_calls();
    StepDetector& detector = session.detector();
    // One of another thread may be a part of the loop's own, whose updates it must not take.
    if (!detector.counts_here()) return;
    detector.ends_backward(std::exchange(session.has_updated_in_backward, false));
  }

  /// Whether it leaves gradients in parameters, as `torch.autograd.grad` does not.
  static bool accumulates(const ObservedCall& call) {
    static PyObject* const name = PyUnicode_InternFromString("accumulate_grad");
    return call.keywords == nullptr || PyDict_GetItem(call.keywords, name) != Py_False;
  }

  const Phase* const phase_ = phase_named("backward");
};

/// Phases "optimizer", "optimizer 2", ...: the steps of optimizers, of which torch's own hooks
/// tell. A step that a gradient scaler leaves out is a short phase, not a missing one: it is the
/// scaler's call that is timed.
class ScalerStep final : public Activity {
  const Phase* phase_of(LoopSession& session, const ObservedCall& call) override {
    return call.count > 0 ? session.phase_of_optimizer(call.others[0]) : nullptr;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    session.detector().begins_update(session.number_of_optimizer(call.others[0]));
  }

  void ended(LoopSession& session, const ObservedCall& call, PyObject* result) override {
    if (result == nullptr) return;
    session.detector().ends_update(session.number_of_optimizer(call.others[0]));
  }
};

/// An optimizer's constructor, which is no activity.
class OptimizerMade final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    return call.self != nullptr ? Observing::begun : Observing::ignored;
  }

  bool ends(ObservedCall& call, PyObject* result) override {
    LoopSession& session = LoopSession::instance();
    if (result == nullptr || !session.is_active()) return true;
    if (!try_allocating([&] { session.number_of_optimizer(call.self); })) session.fail();
    return true;
  }
};

/// A call that is always its phase.
class Plain : public Activity {
 public:
  explicit Plain(const char* phase) : phase_(phase_named(phase)) {}

 protected:
  ~Plain() = default;

  const Phase* phase_of(LoopSession&, const ObservedCall&) override { return phase_; }

  const Phase* const phase_;
};

/// In a call in eval mode it is a phase inside that one: it tells an evaluation from a rollout.
class Loss final : public Plain {
 public:
  Loss() : Plain("loss") {}

  Observing begins(ObservedCall& call) override {
    if (PIG_LIKELY(!is_in_eval())) return Plain::begins(call);
    if (is_compiling()) return Observing::ignored;
    nvtx_push(phase_->nvtx);
    call.token = begin_token(*phase_);
    return Observing::begun;
  }

  bool ends(ObservedCall& call, PyObject* result) override {
    if (PIG_LIKELY(!is_in_eval())) return Plain::ends(call, result);
    nvtx_pop(phase_->nvtx);
    end_token(call.token, Closing::kEnd);
    return true;
  }

 private:
  bool is_in_eval() const { return activity_session == session_number && activity_phase == eval_; }

  const Phase* const eval_ = phase_named("eval");
};

/// What belongs to the update, also where it follows it.
class OfUpdate : public Plain {
 public:
  using Plain::Plain;

 protected:
  ~OfUpdate() = default;

  void ended(LoopSession& session, const ObservedCall&, PyObject*) override {
    session.detector().follows_update();
  }
};

class ZeroGrad final : public OfUpdate {
 public:
  ZeroGrad() : OfUpdate("zero_grad") {}

 private:
  void announce(LoopSession& session, const ObservedCall&) override {
    session.detector().clears_gradients();
  }
};

class SchedulerStep final : public OfUpdate {
 public:
  SchedulerStep() : OfUpdate("scheduler") {}

 private:
  const Phase* phase_of(LoopSession& session, const ObservedCall& call) override {
    if (call.self == nullptr || is_in_constructor(session, call.self)) return nullptr;
    return Plain::phase_of(session, call);
  }

  /// Which sets the first learning rate.
  static bool is_in_constructor(LoopSession& session, PyObject* scheduler) {
    return session.answer(PyObject_GetAttrString(scheduler, "_is_initial")).ptr() == Py_True;
  }
};

/// Calls a function with torch's optimizer, the first argument of its hooks. It returns None.
template <typename Function>
PyObject* for_optimizer(PyObject* const* arguments, Py_ssize_t count, Function function) {
  LoopSession& session = LoopSession::instance();
  if (count > 0 && session.is_active() && !is_compiling()) {
    if (!try_allocating([&] { function(session, arguments[0]); })) session.fail();
    if (session.raise_kept_error()) return nullptr;
  }
  Py_RETURN_NONE;
}

PyObject* optimizer_steps(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return for_optimizer(arguments, count, [](LoopSession& session, PyObject* optimizer) {
    if (is_in_graph_task()) {
      session.has_updated_in_backward = true;
      session.detector().has_stepped(session.number_of_optimizer(optimizer));
    } else if (!session.passes_by()) {
      session.begin_update(optimizer);
    }
  });
}

PyObject* optimizer_has_stepped(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return for_optimizer(arguments, count, [](LoopSession& session, PyObject* optimizer) {
    if (!is_in_graph_task() && !session.passes_by()) session.end_update(optimizer);
  });
}

template <typename Kind>
CallObserver& named(const char* phase) {
  static auto* const observer = new Kind(phase);
  return *observer;
}

struct KindOfCall {
  std::string_view name;
  CallObserver& (*observer)();
  Called called = Called::anyhow;
};

/// The names of what pyinstrument_gpu/auto/calls.py lists. What torch.compile looks into must be
/// a plain function for it, hence `from_c`.
constexpr KindOfCall kKinds[] = {
    {"module", the<ModuleCall>, Called::from_c},
    {"data start", the<LoaderStart>},
    {"data", the<NextItem>},
    {"backward", the<BackwardPass>},
    {"scaler", the<ScalerStep>},
    {"optimizer made", the<OptimizerMade>},
    {"zero_grad", the<ZeroGrad>},
    {"loss", the<Loss>, Called::from_c},
    {"clip", []() -> CallObserver& { return named<OfUpdate>("clip"); }, Called::from_c},
    {"scheduler", the<SchedulerStep>},
    {"checkpoint", []() -> CallObserver& { return named<Plain>("checkpoint"); }},
    {"compiled", compiled_call},
};

template <typename Function>
PyCFunction as_function(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

}  // namespace

std::optional<bool> observe_activity(PyObject* function, std::string_view kind) {
  for (const KindOfCall& known : kKinds)
    if (known.name == kind)
      return observe_call(function, ObserverOf::loop, known.observer(), known.called);
  return std::nullopt;
}

PyMethodDef optimizer_functions[] = {
    {"optimizer_steps", as_function(optimizer_steps), METH_FASTCALL,
     "optimizer_steps(optimizer, args, kwargs, /)\n--\n\n"},
    {"optimizer_has_stepped", as_function(optimizer_has_stepped), METH_FASTCALL,
     "optimizer_has_stepped(optimizer, args, kwargs, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
