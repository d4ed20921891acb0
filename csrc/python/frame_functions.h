// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Adds frame_begin, frame_end and frame_cancel, for decorators and steps. Returns false with a
/// Python error set.
bool add_frame_functions(PyObject* module);

}  // namespace pig
