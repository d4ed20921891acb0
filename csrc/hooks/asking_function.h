// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Has the interpreter ask a function in Python how to call it, each time. Only Python 3.11 needs
/// that; elsewhere nothing is done. False, with no error set, where that is impossible.
bool make_asking(PyObject* function);

/// Takes that back.
void make_plain(PyObject* function);

}  // namespace pig
