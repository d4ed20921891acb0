// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Makes the type ready. Returns false with a Python error set.
bool ready_scope_type();
PyTypeObject* scope_type();

/// The function `gpu_phase.scope` of the module with this name.
PyObject* new_scope_function(PyObject* module_name);

}  // namespace pig
