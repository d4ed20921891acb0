// SPDX-License-Identifier: Apache-2.0
//
// The hooks of calls of torch, as Python sees them.
#include "hooks/call_hook.h"
#include "hooks/call_listeners.h"
#include "hooks/subscript_hook.h"
#include "hooks/tensor_glance.h"
#include "hooks/torch_state.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace pig {
namespace {

PyObject* get_in_watched_call(PyObject*, PyObject*) {
  return PyBool_FromLong(in_watched_call ? 1 : 0);
}

PyObject* set_in_watched_call(PyObject*, PyObject* on) {
  in_watched_call = on == Py_True;
  Py_RETURN_NONE;
}

CallGlance call_glance(int number) {
  if (number < 0 || number >= kCallGlances) throw py::value_error("no such glance");
  return static_cast<CallGlance>(number);
}

PyMethodDef watched_call_functions[] = {
    {"in_watched_call", get_in_watched_call, METH_NOARGS, "in_watched_call()\n--\n\n"},
    {"set_in_watched_call", set_in_watched_call, METH_O, "set_in_watched_call(on, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_hook_functions(py::module_& module) {
  if (PyModule_AddFunctions(module.ptr(), watched_call_functions) != 0)
    throw py::error_already_set();
  module.def(
      "look_at_torch",
      [](const py::type& tensor, const py::type& parameter, py::handle on_host, py::handle on_meta,
         const py::dict& compiler_names, py::handle graph_task_id) {
        set_torch_state(compiler_names.ptr(), graph_task_id.ptr());
        return tensor_glance.install(tensor.ptr(), parameter.ptr(), on_host.ptr(), on_meta.ptr());
      },
      py::kw_only(), py::arg("tensor"), py::arg("parameter"), py::arg("on_host"),
      py::arg("on_meta"), py::arg("compiler_names"), py::arg("graph_task_id"));
  module.def(
      "hook_subscripts",
      [](py::handle base, py::handle enter_get, py::handle enter_set, py::handle leave,
         bool hears_of_host) {
        return hook_subscripts(base.ptr(), enter_get.ptr(), enter_set.ptr(), leave.ptr(),
                               hears_of_host);
      },
      py::arg("base"), py::kw_only(), py::arg("enter_get"), py::arg("enter_set"), py::arg("leave"),
      py::arg("hears_of_host"));
  module.def(
      "hook_call",
      [](py::handle function, int glance, py::handle enter, py::handle leave, bool hears_of_host,
         bool from_c) {
        return hook_call(function.ptr(), call_glance(glance), enter.ptr(), leave.ptr(),
                         hears_of_host, from_c ? Called::from_c : Called::anyhow);
      },
      py::arg("function"), py::arg("glance"), py::kw_only(), py::arg("enter"), py::arg("leave"),
      py::arg("hears_of_host"), py::arg("from_c") = false);
  module.def(
      "unhook",
      [](py::handle leave) {
        unhook_subscripts(leave.ptr());
        unhook_calls(leave.ptr());
      },
      py::arg("leave"));
}

}  // namespace pig
