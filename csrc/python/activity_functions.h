// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Adds begin_activities, in_activity and set_in_activity, for automatic phases. Returns false with
/// a Python error set.
bool add_activity_functions(PyObject* module);

}  // namespace pig
