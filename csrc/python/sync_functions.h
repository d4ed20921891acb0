// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace pig {

/// Adds the functions with which Python records waits.
void add_sync_functions(pybind11::module_& module);

}  // namespace pig
