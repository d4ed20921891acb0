// SPDX-License-Identifier: Apache-2.0
//
// Phases "optimizer", "optimizer 2", ...: the steps of optimizers, of which torch's own hooks tell.
//
// A step that a gradient scaler leaves out is a short phase, not a missing one: it is the scaler's
// call that is timed.
#include "auto/activities.h"
#include "base/throwing.h"
#include "hooks/torch_state.h"

namespace pig {
namespace {

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

template <typename Function>
PyCFunction as_function(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

}  // namespace

CallObserver& scaler_step() { return the<ScalerStep>(); }
CallObserver& optimizer_made() { return the<OptimizerMade>(); }

PyMethodDef optimizer_functions[] = {
    {"optimizer_steps", as_function(optimizer_steps), METH_FASTCALL,
     "optimizer_steps(optimizer, args, kwargs, /)\n--\n\n"},
    {"optimizer_has_stepped", as_function(optimizer_has_stepped), METH_FASTCALL,
     "optimizer_has_stepped(optimizer, args, kwargs, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
