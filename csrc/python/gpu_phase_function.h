// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// `gpu_phase`, or nullptr with a Python error set. Once per process.
PyObject* new_gpu_phase(PyObject* module);

}  // namespace pig
