// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pybind11/pybind11.h>

namespace pig {

/// Adds MetricAccumulator and what belongs to it to the module.
void add_metric_functions(pybind11::module_& module);

}  // namespace pig
