// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "record/recording_thread.h"

namespace pig {

/// Sets an error of the program aside for as long as it lives; our own is dropped.
class ErrorAside {
 public:
  ErrorAside() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ~ErrorAside() {
    // A daemon thread that is ended as it wants the GIL back comes by here without it (GilRelease).
    if (PyGILState_Check() != 0) PyErr_Restore(type_, value_, traceback_);
  }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;

 private:
  PyObject *type_, *value_, *traceback_;
};

/// Clears a MemoryError, and counts it. False where none is set.
inline bool drop_memory_error() {
  if (PyErr_Occurred() == nullptr || PyErr_ExceptionMatches(PyExc_MemoryError) == 0) return false;
  PyErr_Clear();
  count_drop(Drop::kNoMemory);
  return true;
}

/// What `make` returns: an object, or nullptr with a Python error set. Where it lacks memory, that
/// is counted, and the result is what `otherwise` returns. For calls by the program, with no error
/// set.
template <typename Make, typename Otherwise>
auto object_or(Make make, Otherwise otherwise) -> decltype(make()) {
  auto* const made = with_memory(decltype(make()){}, make);
  if (made != nullptr) return made;
  return PyErr_Occurred() == nullptr || drop_memory_error() ? otherwise() : nullptr;
}

}  // namespace pig
