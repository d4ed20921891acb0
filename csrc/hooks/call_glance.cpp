// SPDX-License-Identifier: Apache-2.0
#include "hooks/call_glance.h"

namespace pig {
namespace {

bool is_host_target(PyObject* target) {
  const PyTypeObject* type = Py_TYPE(target);
  if (type == tensor_glance.dtype) return true;
  if (type == &PyUnicode_Type) return PyUnicode_CompareWithASCIIString(target, "cpu") == 0;
  if (type != Py_TYPE(tensor_glance.host_device)) return false;
  const int is_equal = PyObject_RichCompareBool(target, tensor_glance.host_device, Py_EQ);
  if (is_equal < 0) PyErr_Clear();
  return is_equal == 1;
}

bool is_plain_argument(PyObject* argument) {
  const PyTypeObject* type = Py_TYPE(argument);
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         argument == Py_None || tensor_glance.is_on_host(argument);
}

}  // namespace

bool stays_on_host(CallGlance glance, PyObject* self, PyObject* const* others, Py_ssize_t count,
                   bool has_keywords) {
  switch (glance) {
    case CallGlance::never:
      return false;
    case CallGlance::only:
      if (count > 0 || has_keywords) return true;
      [[fallthrough]];
    case CallGlance::first:
      return tensor_glance.is_on_host(self);
    case CallGlance::arguments:
      if (has_keywords || !tensor_glance.is_on_host(self)) return false;
      for (Py_ssize_t i = 0; i < count; ++i)
        if (!is_plain_argument(others[i])) return false;
      return true;
    case CallGlance::to:
      return !has_keywords && count > 0 && tensor_glance.is_on_host(self) &&
             is_host_target(others[0]);
  }
  return false;
}

}  // namespace pig
