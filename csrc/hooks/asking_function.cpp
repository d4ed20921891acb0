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
#include "hooks/call_hook.h"

namespace pig {

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
namespace {

/// As the name by which it can be found in its module.
PyObject* reduce(PyObject* function, PyObject*) {
  return PyObject_GetAttrString(function, "__qualname__");
}

PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};

/// What it does not say it inherits.
PyTypeObject asking_function_type = [] {
  const PyVarObject head[] = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject type{};
  type.ob_base = head[0];
  type.tp_name = "function";
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_methods = methods;
  return type;
}();

bool ready_type() {
  static bool is_ready = false;
  if (is_ready || (asking_function_type.tp_flags & Py_TPFLAGS_READY) != 0) return is_ready;
  asking_function_type.tp_base = &PyFunction_Type;
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

#else

bool make_asking(PyObject*) { return true; }
void make_plain(PyObject*) {}

#endif

}  // namespace pig
