// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "base/ticks.h"

namespace pig {

/// A static type to be filled in.
inline PyTypeObject blank_type() {
  const PyVarObject head[] = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject type{};
  type.ob_base = head[0];
  return type;
}

/// Sets a TypeError unless a vectorcall has `expected` positional arguments and no others.
inline bool check_arguments(size_t nargsf, PyObject* keywords, Py_ssize_t expected,
                            const char* name) {
  const Py_ssize_t got = PyVectorcall_NARGS(nargsf);
  if (PIG_LIKELY(got == expected && (keywords == nullptr || PyTuple_GET_SIZE(keywords) == 0)))
    return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd positional arguments, got %zd", name, expected,
               got);
  return false;
}

}  // namespace pig
