// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace pig {

/// Adds to the open step what is read of each batch that it is fed with. Runs no code of the
/// program, and raises nothing.
void read_batch(PyObject* item);

}  // namespace pig
