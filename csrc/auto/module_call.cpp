// SPDX-License-Identifier: Apache-2.0
//
// Phases "forward", "eval", "no_grad" and "loss": the outermost call of a module. In eval mode it
// is "eval", whatever the mode is for, unless the module is known to be trained in it
// (eval_calls.h), and in training mode without gradients "no_grad": a rollout, a target network, a
// sample. Which calls are an evaluation the analysis says, as it takes more than one call to tell.
#include "auto/activities.h"

namespace pig {
namespace {

class ModuleCall final : public Activity {
  const Phase* phase_of(LoopSession& session, const ObservedCall& call) override {
    if (call.self == nullptr) return nullptr;
    if (session.is_loss(call.self)) return loss_;
    const bool is_grad_enabled = session.is_grad_enabled();
    if (is_in_training_mode(call.self)) return is_grad_enabled ? forward_ : no_grad_;
    return is_grad_enabled && session.is_trained_in_eval_mode(call.self) ? forward_ : eval_;
  }

  void announce(LoopSession& session, const ObservedCall& call) override {
    // A loss, a metric or a transform is in training mode in a validation loop too.
    if (call.subject == loss_ || !session.has_parameters(call.self)) return;
    if (call.subject == forward_) {
      session.detector().runs_forward();
    } else {
      session.detector().evaluates();
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
};

}  // namespace

CallObserver& module_call() { return the<ModuleCall>(); }

}  // namespace pig
