// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Calls a listener for `tensor[index]` and `tensor[index] = value`, where the index may select
/// by value; the arguments are those of `__getitem__` and `__setitem__`. `base` is torch's class
/// that implements them in C. False, with no error set, where it isn't built as expected: then
/// nothing has changed.
bool hook_subscripts(PyObject* base, PyObject* enter_get, PyObject* enter_set, PyObject* leave,
                     bool hears_of_host);

/// Takes the listener with this `leave` back. After the last one everything is as it was.
void unhook_subscripts(PyObject* leave);

}  // namespace pig
