// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace pig {

/// Samples of the main thread's Python stack.
void add_stack_functions(pybind11::module_& module);
void forget_stack_sampler_in_child();

}  // namespace pig
