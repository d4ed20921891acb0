// SPDX-License-Identifier: Apache-2.0
//
// A function in Python says by its `vectorcall` how it is to be called. Python 3.11 doesn't ask
// where the call stands in Python code: it runs the function's code in the same C frame, if the
// function's type is exactly that of functions. (3.10 always asks; from 3.12 on the interpreter
// looks whether the `vectorcall` is its own.)
//
// So on 3.11 the function gets another type, one that is derived from the type of functions, says
// that it has its name, and adds nothing to it that a program would look for. The object stays the
// same one. `isinstance(f, types.FunctionType)` and `inspect.isfunction(f)` are true as before;
// only `type(f) is types.FunctionType` is not. Pickle and copy go by the exact type and know
// functions; of others they ask `__reduce__`.
#include "hooks/asking_function.h"

#include "base/ticks.h"

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000

namespace pig {
namespace {

/// As the name by which it can be found in its module.
PyObject* reduce(PyObject* function, PyObject*) {
  return PyObject_GetAttrString(function, "__qualname__");
}

PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

PyTypeObject asking_function_type = [] {
  const PyVarObject head[] = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject type{};
  type.ob_base = head[0];
  type.tp_name = "function";
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                  Py_TPFLAGS_METHOD_DESCRIPTOR;
  type.tp_methods = methods;
  return type;
}();

bool ready_type() {
  static bool is_ready = false;
  if (is_ready || (asking_function_type.tp_flags & Py_TPFLAGS_READY) != 0) return is_ready;
  const PyTypeObject& plain = PyFunction_Type;
  asking_function_type.tp_base = &PyFunction_Type;
  asking_function_type.tp_basicsize = plain.tp_basicsize;
  asking_function_type.tp_vectorcall_offset = plain.tp_vectorcall_offset;
  asking_function_type.tp_call = plain.tp_call;
  asking_function_type.tp_descr_get = plain.tp_descr_get;
  asking_function_type.tp_dealloc = plain.tp_dealloc;
  asking_function_type.tp_traverse = plain.tp_traverse;
  asking_function_type.tp_clear = plain.tp_clear;
  // A type without a text of its own has `__doc__` None, which would hide the function's.
  if (PyType_Ready(&asking_function_type) == 0 &&
      PyDict_DelItemString(asking_function_type.tp_dict, "__doc__") == 0) {
    PyType_Modified(&asking_function_type);
    is_ready = true;
  }
  PyErr_Clear();
  return is_ready;
}

}  // namespace

bool make_asking(PyObject* function) {
  if (!Py_IS_TYPE(function, &PyFunction_Type) || !ready_type()) return false;
  Py_SET_TYPE(function, &asking_function_type);
  return true;
}

void make_plain(PyObject* function) {
  if (Py_IS_TYPE(function, &asking_function_type)) Py_SET_TYPE(function, &PyFunction_Type);
}

}  // namespace pig

#else

namespace pig {

bool make_asking(PyObject*) { return true; }
void make_plain(PyObject*) {}

}  // namespace pig

#endif
