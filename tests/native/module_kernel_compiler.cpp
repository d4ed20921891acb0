// SPDX-License-Identifier: Apache-2.0
//
// The kernels by NVRTC, for Python tests. It needs no device.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "metrics/kernel_image.h"

namespace py = pybind11;

PYBIND11_MODULE(_kernel_compiler, module) {
  // The code and why there is none, for a compute capability.
  module.def("compile_kernels", [](int major, int minor) {
    const auto compiled = pig::metrics::compile_kernels(major, minor);
    return py::make_tuple(py::bytes(compiled.code), compiled.error);
  });
  module.def("set_nvrtc_paths", &pig::cuda::set_nvrtc_paths);
}
