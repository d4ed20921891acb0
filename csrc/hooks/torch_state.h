// SPDX-License-Identifier: Apache-2.0
//
// What torch does on the calling thread, which the observers of calls ask during them.
#pragma once

#include <Python.h>

namespace pig {

/// How to ask: by the dictionary of `torch.compiler`, and a builtin function, which returns -1
/// outside of a backward pass's own threads. Both are kept for good. Calling it again does nothing.
void set_torch_state(PyObject* compiler_names, PyObject* graph_task_id);

/// Whether torch.compile, or export, follows the program.
bool is_compiling();
/// Whether the calling thread is in a backward pass, which may have threads of autograd's own.
bool is_in_graph_task();

}  // namespace pig
