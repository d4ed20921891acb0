// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>

namespace pig {

/// What is asked of torch at each call of a watched module; references that are kept for good.
struct ModuleQuestions {
  PyObject* grad_fn;        ///< the descriptor of this attribute of tensors
  PyObject* mode_count;     ///< () -> int: modes that see what is asked of a tensor
  PyObject* without_modes;  ///< () -> a context in which they don't
};
void set_module_questions(const ModuleQuestions& questions);

/// Whether modes of the program see what is asked of a tensor.
bool modes_hear();

/// The tensors that go into a module, or come out of it: the first few, and not those that lie deep
/// in others.
class CallTensors {
 public:
  CallTensors() = default;
  CallTensors(const CallTensors&) = delete;
  CallTensors& operator=(const CallTensors&) = delete;
  ~CallTensors() {
    for (size_t i = 0; i < count_; ++i) Py_DECREF(found_[i]);
  }

  /// Runs no code of Python's.
  void add(PyObject* object, int depth = 0);

  /// Puts a mark on the nodes of those that have none. Modes hear nothing of it, if it is known
  /// that there are some.
  void put_marks(PyObject* mark, bool beside_modes) const;

 private:
  static constexpr size_t kMost = 8;
  static constexpr int kDeepest = 4;
  /// Of a list of a million numbers only the beginning is looked at.
  static constexpr int kMostLooks = 64;

  std::array<PyObject*, kMost> found_;
  size_t count_ = 0;
  int looks_ = 0;
};

}  // namespace pig
