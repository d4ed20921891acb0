// SPDX-License-Identifier: Apache-2.0
//
// The watch of modules, as Python sees it.
#include "hooks/call_hook.h"
#include "modules/call_tensors.h"
#include "modules/module_watch.h"
#include "python/bindings.h"
#include "record/module_sampling.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

bool observe_modules(py::handle call, py::handle run_backward, py::handle grad_fn,
                     py::handle mode_count, py::handle without_modes) {
  if (Py_TYPE(grad_fn.ptr())->tp_descr_get == nullptr)
    throw py::type_error("a descriptor is needed");
  set_module_questions({grad_fn.ptr(), mode_count.ptr(), without_modes.ptr()});
  return observe_call(call.ptr(), ObserverOf::modules, watched_call(), Called::from_c) &&
         observe_call(run_backward.ptr(), ObserverOf::modules, watched_backward_pass());
}

}  // namespace

void add_module_functions(py::module_& module) {
  module.def("observe_modules", &observe_modules, py::kw_only(), "call"_a, "run_backward"_a,
             "grad_fn"_a, "mode_count"_a, "without_modes"_a);
  module.def("unobserve_modules", [] { unobserve_calls(ObserverOf::modules); });
  module.def(
      "set_root_function", [](py::handle function) { set_root_function(function.ptr()); },
      "function"_a);
  module.def(
      "watch_module",
      [](py::handle watched, py::handle name, int64_t parent) {
        if (!PyUnicode_Check(name.ptr())) throw py::type_error("a name must be a str");
        const int64_t number = watch_module(watched.ptr(), name.ptr(), parent);
        if (number < 0) throw py::error_already_set();
        return number;
      },
      "module"_a, "name"_a, "parent"_a);
  module.def(
      "set_module_marks",
      [](int64_t number, py::handle enter, py::handle leave) {
        if (!set_module_marks(number, enter.ptr(), leave.ptr())) throw py::error_already_set();
      },
      "number"_a, "enter"_a, "leave"_a);
  module.def(
      "module_mark",
      [](int64_t number, bool enters) {
        py::object mark = new_module_mark(number, enters);
        if (!mark) throw py::error_already_set();
        return mark;
      },
      "number"_a, "enters"_a);
  module.def("unwatch_module", &unwatch_module, "number"_a);
  module.def("was_module_called", &was_module_called, "number"_a);
  module.def(
      "sample_modules", [](uint32_t every) { ModuleSampling::instance().choose(every); },
      "every"_a);
}

}  // namespace pig
