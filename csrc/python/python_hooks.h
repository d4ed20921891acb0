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
  PyObject* device_warnings = nullptr;   ///< () -> None: warns of what device timing has to say
  PyObject* device_probe = nullptr;      ///< () -> None: attaches device timing if it can
  PyObject* phase_name_error = nullptr;  ///< an exception class
};

extern PythonHooks python_hooks;

/// The calling thread's name, or empty.
std::string current_thread_name();

// From any thread, without the GIL: have the hook of that name called soon.
void schedule_history_stopped();
void schedule_device_warnings();
void schedule_device_probe();

/// Calls the hooks that are due. With the GIL, where Python code may run. Three loads when none is.
void run_due_hooks();

}  // namespace pig
