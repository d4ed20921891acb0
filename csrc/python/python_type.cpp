// SPDX-License-Identifier: Apache-2.0
#include "python/python_type.h"

namespace pig {
namespace {

struct MethodDescriptor {
  PyObject_HEAD
  PyTypeObject* owner;
  const char* name;
  size_t offset;
};

/// What `instance` has; nullptr with an error set where it is of another type.
PyObject* method_of(PyObject* self, PyObject* instance) {
  const auto* const descriptor = reinterpret_cast<MethodDescriptor*>(self);
  char* const object = reinterpret_cast<char*>(instance);
  if (PIG_LIKELY(Py_TYPE(instance) == descriptor->owner))
    return Py_NewRef(*reinterpret_cast<PyObject**>(object + descriptor->offset));
  PyErr_Format(PyExc_TypeError, "%s() of %s needs one, got %.200s", descriptor->name,
               descriptor->owner->tp_name, Py_TYPE(instance)->tp_name);
  return nullptr;
}

PyObject* descriptor_get(PyObject* self, PyObject* instance, PyObject*) {
  return PIG_LIKELY(instance != nullptr) ? method_of(self, instance) : Py_NewRef(self);
}

PyObject* descriptor_call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const Py_ssize_t count = PyTuple_GET_SIZE(arguments);
  PyObject* method = method_of(self, count > 0 ? PyTuple_GET_ITEM(arguments, 0) : Py_None);
  if (method == nullptr) return nullptr;
  PyObject* others = PyTuple_GetSlice(arguments, 1, count);
  PyObject* result = others != nullptr ? PyObject_Call(method, others, keywords) : nullptr;
  Py_XDECREF(others);
  Py_DECREF(method);
  return result;
}

PyTypeObject descriptor_type = static_type<MethodDescriptor>(
    "pyinstrument_gpu.native._C.MethodDescriptor", [](PyTypeObject& type) {
      type.tp_descr_get = descriptor_get;
      type.tp_call = descriptor_call;
    });

}  // namespace

bool ready_type(PyTypeObject& type, std::initializer_list<ReadyMethod> methods) {
  if (PyType_Ready(&type) != 0 || PyType_Ready(&descriptor_type) != 0) return false;
  for (const ReadyMethod& method : methods) {
    auto* const made = PyObject_New(MethodDescriptor, &descriptor_type);
    if (made == nullptr) return false;
    made->owner = &type;
    made->name = method.name;
    made->offset = method.offset;
    PyObject* const object = reinterpret_cast<PyObject*>(made);
    const int error = PyDict_SetItemString(type.tp_dict, method.name, object);
    Py_DECREF(object);
    if (error != 0) return false;
  }
  PyType_Modified(&type);
  return true;
}

}  // namespace pig
