// SPDX-License-Identifier: Apache-2.0
//
// What a loop over `gpu_steps` draws from. One step of it is one call of the interpreter: a step,
// its phase "data" and the note of what is open begin and end without an instruction of Python in
// between, where an exception could come. Freed, it ends the step that is open.
#pragma once

#include <Python.h>

namespace pig {

/// Whether a loop of the program's own, `gpu_steps`, times the wait for the next item.
extern thread_local bool is_timing_data;

/// Its phases are made too. Returns false with a Python error set.
bool ready_step_iterator();

extern PyMethodDef step_iterator_functions[];

}  // namespace pig
