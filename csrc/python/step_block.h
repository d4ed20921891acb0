// SPDX-License-Identifier: Apache-2.0
//
// The base of `gpu_step`: a `with` block that is one step.
#pragma once

#include <Python.h>

namespace pig {

extern PyTypeObject step_block_type_object;

}  // namespace pig
