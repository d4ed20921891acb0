// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "hot/active_recording.h"
#include "python/bindings.h"
#include "python/python_hooks.h"
#include "record/step.h"

namespace py = pybind11;

namespace pig {
namespace {

int64_t step_begin() {
  // The hooks belong to a recording.
  if (active_epoch.load(std::memory_order_relaxed) != 0) run_due_hooks();
  return begin_step();
}

}  // namespace

void add_step_functions(py::module_& module) {
  module.def("step_begin", &step_begin);
  module.def("step_item", &add_step_item, py::arg("token"), py::arg("samples"));
  module.def("step_mark", &mark_step, py::arg("token"));
  module.def("step_end", &end_step, py::arg("token"), py::arg("complete"),
             py::arg("at_mark") = false);
  module.def("step_drop", &drop_step, py::arg("token"));
}

}  // namespace pig
