// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <string>

namespace pig {

/// What the native module asks of Python, off the hot path. Set once at import by _native.py.
struct PythonHooks {
  PyObject* decorate = nullptr;     ///< (phase, function) -> wrapped function
  PyObject* thread_name = nullptr;  ///< () -> str
  PyObject* history_stopped =
      nullptr;  ///< () -> None: warns that the file can no longer be written
  PyObject* phase_name_error = nullptr;  ///< an exception class
};

extern PythonHooks python_hooks;

/// The calling thread's name, or empty.
std::string current_thread_name();

/// From any thread, without the GIL: has the main thread call `history_stopped` soon.
void schedule_history_stopped();

}  // namespace pig
