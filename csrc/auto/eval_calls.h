// SPDX-License-Identifier: Apache-2.0
//
// Which modules are trained although they are in eval mode, as in fine-tuning with frozen
// normalisation. A call can't tell: an evaluation may leave gradients on, too. But if a backward
// pass leaves gradients in the parameters of a module that was called so, and that is still in eval
// mode, then it is trained, and its further calls are forward passes.
#pragma once

#include <Python.h>

#include <cstdint>

#include "python/object_table.h"

namespace pig {

class EvalCalls {
 public:
  /// A module in eval mode is called with gradients enabled. Returns whether it is known to be
  /// trained. Throws bad_alloc.
  bool is_of_trained(PyObject* module);
  /// Whether any was called that has to be looked at after a backward pass.
  bool are_open() const { return are_open_; }
  /// After a backward pass. `is_trained_in_eval_mode`: (module) -> bool; an error that it raises is
  /// left set. Throws bad_alloc.
  void after_backward(PyObject* is_trained_in_eval_mode);
  void clear();

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
