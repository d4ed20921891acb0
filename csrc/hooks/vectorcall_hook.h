// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_glance.h"

namespace pig {

/// Has a listener hear of the calls of a function: a builtin one that takes a tuple and keywords,
/// such as `torch.where`, or one in Python that is reached through a slot of a type, such as
/// `torch.Tensor.__repr__`. False, with no error set, where it can't be hooked.
///
/// Of functions in Python, the interpreter makes calls that stand in Python code without asking the
/// function up to 3.11: these are not heard of.
bool hook_vectorcall(PyObject* function, CallGlance glance, PyObject* enter, PyObject* leave,
                     bool hears_of_host);

/// Takes the listener with this `leave` back, from all functions.
void unhook_vectorcalls(PyObject* leave);

}  // namespace pig
