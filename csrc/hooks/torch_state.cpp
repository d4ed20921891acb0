// SPDX-License-Identifier: Apache-2.0
#include "hooks/torch_state.h"

namespace pig {
namespace {

PyObject* compiler_names = nullptr;
PyObject* graph_task_id = nullptr;

}  // namespace

void set_torch_state(PyObject* names, PyObject* id) {
  if (compiler_names != nullptr) return;
  compiler_names = Py_NewRef(names);
  graph_task_id = Py_NewRef(id);
}

bool is_compiling() {
  static PyObject* const name = PyUnicode_InternFromString("_is_compiling_flag");
  PyObject* value = PyDict_GetItemWithError(compiler_names, name);
  if (value == nullptr) PyErr_Clear();
  return value == Py_True;
}

bool is_in_graph_task() {
  PyObject* id = PyObject_CallNoArgs(graph_task_id);
  const long number = id != nullptr ? PyLong_AsLong(id) : -1;
  Py_XDECREF(id);
  PyErr_Clear();
  return number != -1;
}

}  // namespace pig
