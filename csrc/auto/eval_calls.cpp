// SPDX-License-Identifier: Apache-2.0
#include "auto/eval_calls.h"

#include <vector>

namespace pig {

bool EvalCalls::is_of_trained(PyObject* module) {
  Module* known = modules_.find(module);
  if (known == nullptr) known = modules_.add(module, {});
  if (known == nullptr || known->is_trained) return known != nullptr;
  if (known->looks < kMostLooks) known->is_open = are_open_ = true;
  return false;
}

void EvalCalls::after_backward(PyObject* is_trained_in_eval_mode) {
  are_open_ = false;
  // The answers run Python code, which may change the table.
  std::vector<PyObject*> open;
  open.reserve(modules_.count([](const Module& known) { return known.is_open; }));
  modules_.for_each([&](PyObject* module, const Module& known) {
    if (known.is_open) open.push_back(Py_NewRef(module));
  });
  for (PyObject* module : open) {
    PyObject* answer = PyErr_Occurred() == nullptr
                           ? PyObject_CallOneArg(is_trained_in_eval_mode, module)
                           : nullptr;
    if (Module* known = modules_.find(module)) {
      known->is_open = false;
      known->is_trained = answer == Py_True;
      ++known->looks;
    }
    Py_XDECREF(answer);
    Py_DECREF(module);
  }
}

void EvalCalls::clear() {
  modules_.clear();
  are_open_ = false;
}

}  // namespace pig
