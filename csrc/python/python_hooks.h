// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "record/part.h"

namespace pig {

/// What the native module asks of Python, off the hot path. Set once at import by
/// recording/native_callbacks.py.
struct PythonHooks {
  PyObject* decorate = nullptr;          ///< (phase, function) -> wrapped function
  PyObject* thread_name = nullptr;       ///< () -> str
  PyObject* statement = nullptr;         ///< (code, offset) -> "with", "for" or None
  PyObject* phase_name_error = nullptr;  ///< an exception class
  PyObject* notices[5] = {};             ///< () -> None: what is done about each notice
};

extern PythonHooks python_hooks;

/// The calling thread's name, or empty.
std::string current_thread_name();

/// Calls one of our functions without arguments in the middle of the program, which gets no
/// exception of it. What a signal handler raises meanwhile, such as SystemExit, it gets a moment
/// later.
void call_unraisably(PyObject* function);

/// From any thread, without the GIL: have the notice's hook called soon.
void schedule_hook(Notice notice);

/// Calls the hooks that are due. With the GIL, where Python code may run. Four loads when none is.
void run_due_hooks();

// Python functions that are called between two steps, by the thread that begins a step.

/// Has `function` called once, without arguments, before the step of a recording that begins after
/// so many others. What it raises is reported as unraisable. Where there is no memory it is not
/// called.
void call_before_step(PyObject* function, uint64_t after);

/// Forgets those that were not called yet. At the end of a recording, with the GIL.
void forget_step_calls();

/// Before a recorded step begins, with the GIL: calls what is due. One load when nothing waits.
void run_step_calls();

}  // namespace pig
