// SPDX-License-Identifier: Apache-2.0
//
// The family of the types that are written against the C API: all are static, made of a struct and
// of slots. They are used in the program's loop, where a call through pybind11 would cost more than
// all that it does.
#pragma once

#include <Python.h>

#include <cstddef>
#include <initializer_list>

#include "base/ticks.h"

namespace pig {

/// A static type of objects that are such a struct. `fill` sets its further slots.
template <typename Object, typename Fill>
PyTypeObject static_type(const char* name, Fill fill) {
  const PyVarObject head[] = {PyVarObject_HEAD_INIT(nullptr, 0)};
  PyTypeObject type{};
  type.ob_base = head[0];
  type.tp_name = name;
  type.tp_basicsize = sizeof(Object);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  fill(type);
  return type;
}

/// Objects that are called by the vectorcall in this place of theirs.
inline void call_by_vectorcall(PyTypeObject& type, size_t offset) {
  type.tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = static_cast<Py_ssize_t>(offset);
  type.tp_call = PyVectorcall_Call;
}

/// A method in C that takes an array of arguments, for a table of methods.
inline PyCFunction as_method(PyObject* (*function)(PyObject*, PyObject* const*, Py_ssize_t)) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

/// A method that each object of a type has ready, in a place of its own.
struct ReadyMethod {
  const char* name;
  size_t offset;  ///< of the pointer to the callable
};

/// Makes a type ready, with methods that are not bound anew each time. Up to Python 3.13 a `with`
/// statement looks `__enter__` and `__exit__` up on the type and binds them, which would allocate
/// two objects. These are descriptors that hand out what the object has. Found on the type itself,
/// as contextlib.ExitStack does, a descriptor is called with the object as the first argument.
/// False with a Python error set.
bool ready_type(PyTypeObject& type, std::initializer_list<ReadyMethod> methods = {});

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
