// SPDX-License-Identifier: Apache-2.0
//
// Phases "forward", "eval" and "loss": the outermost call of a module. A root is being trained
// where it is in training mode and gradients are enabled; else the phase is "eval".
#include "auto/activities.h"

namespace pig {
namespace {

class ModuleCall final : public Activity {
  const Phase* phase_of(LoopSession& session, const ObservedCall& call) override {
    if (call.self == nullptr) return nullptr;
    if (!is_training(session, call.self)) return eval_;
    return session.is_loss(call.self) ? loss_ : forward_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    // A loss, a metric or a transform is in training mode in a validation loop too.
    if (session.is_loss(call.self) || !session.has_parameters(call.self)) return;
    if (call.subject == eval_) {
      session.detector().evaluates();
    } else {
      session.detector().runs_forward();
    }
  }

  static bool is_training(LoopSession& session, PyObject* module) {
    static PyObject* const name = PyUnicode_InternFromString("training");
    PyObject* names = PyObject_GenericGetDict(module, nullptr);
    PyObject* mode = names != nullptr ? PyDict_GetItemWithError(names, name) : nullptr;
    // A module whose own __init__ was never run has no mode.
    const bool is_in_training_mode = mode == nullptr || mode == Py_True;
    Py_XDECREF(names);
    PyErr_Clear();
    return is_in_training_mode && session.is_grad_enabled();
  }

  const Phase* const forward_ = phase_named("forward");
  const Phase* const eval_ = phase_named("eval");
  const Phase* const loss_ = phase_named("loss");
};

}  // namespace

CallObserver& module_call() { return the<ModuleCall>(); }

}  // namespace pig
