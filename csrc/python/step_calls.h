// SPDX-License-Identifier: Apache-2.0
//
// Python functions that are called between two steps, by the thread that begins a step.
#pragma once

#include <Python.h>

#include <cstdint>

namespace pig {

/// Has `function` called once, without arguments, before the step of a recording that begins after
/// so many others. What it raises is reported as unraisable. Where there is no memory it is not
/// called.
void call_before_step(PyObject* function, uint64_t after);

/// Forgets those that were not called yet. At the end of a recording, with the GIL.
void forget_step_calls();

/// Before a recorded step begins, with the GIL: calls what is due. One load when nothing waits.
void run_step_calls();

}  // namespace pig
