// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Adds `gpu_phase`, `Phase`, `Scope` and the functions on frames to the module. Returns false with
/// a Python error set.
bool add_phase_types(PyObject* module);

}  // namespace pig
