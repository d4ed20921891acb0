// SPDX-License-Identifier: Apache-2.0
#include "modules/module_questions.h"

#include <array>
#include <cstddef>

#include "base/loaded_library.h"
#include "base/ticks.h"

namespace pig {

ModuleQuestions module_questions{};

namespace {

bool (*has_modes)() = nullptr;

/// The integer that a call gave, or `otherwise`. Takes the reference.
int64_t integer(PyObject* result, int64_t otherwise) {
  const int64_t number = result != nullptr ? PyLong_AsLongLong(result) : otherwise;
  Py_XDECREF(result);
  if (PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  return otherwise;
}

/// The C functions of two methods of a type of nodes; nullptr: to be called by name.
struct NodeMethods {
  const PyTypeObject* type;
  PyCFunction number;
  PyCFunction add_hooks;
};

PyCFunction method_in_c(PyTypeObject* type, PyObject* name, int flags) {
  PyObject* method = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), name);
  PyCFunction found = nullptr;
  if (method == nullptr) {
    PyErr_Clear();
  } else if (Py_IS_TYPE(method, &PyMethodDescr_Type)) {
    const PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
    if (definition->ml_flags == flags) found = definition->ml_meth;
  }
  Py_XDECREF(method);
  return found;
}

struct MethodNames {
  PyObject* number = PyUnicode_InternFromString("_sequence_nr");
  PyObject* add_hooks = PyUnicode_InternFromString("_register_hook_dict");
};
const MethodNames& names() {
  static const MethodNames found;
  return found;
}

/// Those of a node's type. Each kind of node that torch has is a static type, which stays as it is.
const NodeMethods& methods_of(PyObject* node) {
  static constexpr NodeMethods by_name{};
  static std::array<NodeMethods, 64> known{};
  PyTypeObject* type = Py_TYPE(node);
  NodeMethods& methods = known[(reinterpret_cast<uintptr_t>(type) * 0x9E3779B97F4A7C15u) >> 58];
  if (PIG_LIKELY(methods.type == type)) return methods;
  if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0) return by_name;
  methods = {type, method_in_c(type, names().number, METH_NOARGS),
             method_in_c(type, names().add_hooks, METH_O)};
  return methods;
}

}  // namespace

void set_module_questions(const ModuleQuestions& questions) {
  for (PyObject* kept : {questions.grad_fn, questions.mode_count, questions.without_modes})
    Py_INCREF(kept);
  module_questions = questions;
  has_modes = loaded_function<decltype(has_modes)>("libtorch_cpu.so",
                                                   "_ZN2at4impl27torch_function_mode_enabledEv");
}

bool modes_hear() {
  if (PIG_LIKELY(has_modes != nullptr)) return has_modes();
  return integer(PyObject_CallNoArgs(module_questions.mode_count), 0) > 0;
}

PyObject* node_of(PyObject* tensor) {
  PyObject* descriptor = module_questions.grad_fn;
  PyObject* node =
      Py_TYPE(descriptor)
          ->tp_descr_get(descriptor, tensor, reinterpret_cast<PyObject*>(Py_TYPE(tensor)));
  if (PIG_UNLIKELY(node == nullptr)) PyErr_Clear();
  if (node == Py_None) Py_CLEAR(node);
  return node;
}

uint64_t number_of(PyObject* node) {
  const PyCFunction ask = methods_of(node).number;
  return static_cast<uint64_t>(integer(
      ask != nullptr ? ask(node, nullptr) : PyObject_CallMethodNoArgs(node, names().number), -1));
}

void add_hooks(PyObject* node, PyObject* tensor) {
  const PyCFunction add = methods_of(node).add_hooks;
  PyObject* result = add != nullptr ? add(node, tensor)
                                    : PyObject_CallMethodOneArg(node, names().add_hooks, tensor);
  if (PIG_UNLIKELY(result == nullptr)) PyErr_Clear();
  Py_XDECREF(result);
}

}  // namespace pig
