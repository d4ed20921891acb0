// SPDX-License-Identifier: Apache-2.0
//
// Which modules are trained although they are in eval mode, as in fine-tuning with frozen
// normalisation. A call can't tell: an evaluation may leave gradients on, too. But if a backward
// pass leaves gradients in the parameters of a module that was called so, and that is still in eval
// mode, then it is trained, and its further calls are forward passes.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <vector>

#include "python/object_table.h"

namespace pig {

class EvalCalls {
 public:
  /// A module in eval mode is called with gradients enabled. Returns whether it is known to be
  /// trained. Throws bad_alloc.
  bool is_of_trained(PyObject* module) {
    Module* known = modules_.find(module);
    if (known == nullptr) known = modules_.add(module, {});
    if (known == nullptr || known->is_trained) return known != nullptr;
    if (known->looks < kMostLooks) known->is_open = are_open_ = true;
    return false;
  }
  /// Whether any was called that has to be looked at after a backward pass.
  bool are_open() const { return are_open_; }
  /// After a backward pass. `is_trained_in_eval_mode`: (module) -> bool; an error that it raises is
  /// left set. Throws bad_alloc.
  void after_backward(PyObject* is_trained_in_eval_mode) {
    are_open_ = false;
    // The answers run Python code, which may change the table.
    std::vector<pybind11::object> open;
    modules_.for_each([&](pybind11::handle module, const Module& known) {
      if (known.is_open) open.push_back(pybind11::reinterpret_borrow<pybind11::object>(module));
    });
    for (const pybind11::object& module : open) {
      const auto answer = pybind11::reinterpret_steal<pybind11::object>(
          PyErr_Occurred() == nullptr ? PyObject_CallOneArg(is_trained_in_eval_mode, module.ptr())
                                      : nullptr);
      Module* known = modules_.find(module.ptr());
      if (known != nullptr) {
        known->is_open = false;
        known->is_trained = answer.ptr() == Py_True;
        ++known->looks;
      }
    }
  }
  void clear() {
    modules_.clear();
    are_open_ = false;
  }

 private:
  /// A teacher runs in eval mode for each update, and never has gradients.
  static constexpr uint8_t kMostLooks = 8;

  struct Module {
    bool is_open = false;
    bool is_trained = false;
    uint8_t looks = 0;
  };

  bool are_open_ = false;
  ObjectTable<Module> modules_;
};

}  // namespace pig
