// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

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

}  // namespace pig
