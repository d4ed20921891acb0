// SPDX-License-Identifier: Apache-2.0
//
// Calls that are a phase and not much more: "zero_grad", "loss", "clip", "scheduler" and
// "checkpoint". Modules that compute a loss are in module_call.cpp.
#include "auto/activities.h"
#include "hooks/torch_state.h"
#include "hot/nvtx_range.h"
#include "python/phase_use.h"

namespace pig {
namespace {

/// A call that is always its phase.
class Plain : public Activity {
 public:
  explicit Plain(const char* phase) : phase_(phase_named(phase)) {}

 protected:
  ~Plain() = default;

  const Phase* phase_of(LoopSession&, const ObservedCall&) override { return phase_; }

  const Phase* const phase_;
};

class Checkpoint final : public Plain {
 public:
  Checkpoint() : Plain("checkpoint") {}
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
 protected:
  using Plain::Plain;
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

class Clip final : public OfUpdate {
 public:
  Clip() : OfUpdate("clip") {}
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
    PyObject* flag = PyObject_GetAttrString(scheduler, "_is_initial");
    if (flag == nullptr) session.take_error();
    Py_XDECREF(flag);
    return flag == Py_True;
  }
};

}  // namespace

CallObserver& checkpoint() { return the<Checkpoint>(); }
CallObserver& loss() { return the<Loss>(); }
CallObserver& zero_grad() { return the<ZeroGrad>(); }
CallObserver& clip() { return the<Clip>(); }
CallObserver& scheduler_step() { return the<SchedulerStep>(); }

}  // namespace pig
