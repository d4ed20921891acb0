// SPDX-License-Identifier: Apache-2.0
#include "python/phase_type.h"

#include <cstddef>

#include "python/memory_error.h"
#include "python/phase_use.h"
#include "python/python_hooks.h"
#include "python/python_type.h"

namespace pig {

struct PhaseMethod {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Phase* phase;
};

namespace {

struct PhaseDescriptor {
  PyObject_HEAD
  bool is_exit;
};

// --- the callables of a handle ---

PyObject* call_enter(PyObject* self, PyObject* const*, size_t nargsf, PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 0, "__enter__")) return nullptr;
  Phase* phase = reinterpret_cast<PhaseMethod*>(self)->phase;
  enter_phase<Use::kBlock>(*phase);
  return Py_NewRef(reinterpret_cast<PyObject*>(phase));
}

PyObject* call_exit(PyObject* self, PyObject* const*, size_t nargsf, PyObject* keywords) {
  if (!check_arguments(nargsf, keywords, 3, "__exit__")) return nullptr;
  exit_phase<Use::kBlock>(*reinterpret_cast<PhaseMethod*>(self)->phase);
  Py_RETURN_NONE;
}

PyTypeObject phase_method_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.PhaseMethod";
  type.tp_basicsize = sizeof(PhaseMethod);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(PhaseMethod, vectorcall);
  type.tp_call = PyVectorcall_Call;
  return type;
}();

PhaseMethod* new_method(Phase* phase, vectorcallfunc function) {
  auto* method = PyObject_New(PhaseMethod, &phase_method_type);
  if (method == nullptr) return nullptr;
  method->vectorcall = function;
  method->phase = phase;  // not counted: both live forever
  return method;
}

// --- descriptors of __enter__ and __exit__ ---

PyObject* descriptor_get(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr) return Py_NewRef(self);
  Phase* phase = phase_argument(instance);
  if (PIG_UNLIKELY(phase == nullptr)) return nullptr;
  PhaseMethod* method =
      reinterpret_cast<PhaseDescriptor*>(self)->is_exit ? phase->exit : phase->enter;
  return Py_NewRef(reinterpret_cast<PyObject*>(method));
}

PyObject* descriptor_call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  const bool is_exit = reinterpret_cast<PhaseDescriptor*>(self)->is_exit;
  const Py_ssize_t expected = is_exit ? 4 : 1;
  PyObject* instance = PyTuple_GET_SIZE(arguments) > 0 ? PyTuple_GET_ITEM(arguments, 0) : nullptr;
  if (instance == nullptr || Py_TYPE(instance) != &phase_type_object ||
      PyTuple_GET_SIZE(arguments) != expected ||
      (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0)) {
    PyErr_Format(PyExc_TypeError, "%s() takes a Phase and %zd more positional arguments",
                 is_exit ? "__exit__" : "__enter__", expected - 1);
    return nullptr;
  }
  auto* phase = reinterpret_cast<Phase*>(instance);
  if (is_exit) {
    exit_phase<Use::kBlock>(*phase);
    Py_RETURN_NONE;
  }
  enter_phase<Use::kBlock>(*phase);
  return Py_NewRef(instance);
}

PyTypeObject phase_descriptor_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.PhaseDescriptor";
  type.tp_basicsize = sizeof(PhaseDescriptor);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_descr_get = descriptor_get;
  type.tp_call = descriptor_call;
  return type;
}();

bool add_descriptor(PyObject* dict, const char* name, bool is_exit) {
  auto* descriptor = PyObject_New(PhaseDescriptor, &phase_descriptor_type);
  if (descriptor == nullptr) return false;
  descriptor->is_exit = is_exit;
  const int error = PyDict_SetItemString(dict, name, reinterpret_cast<PyObject*>(descriptor));
  Py_DECREF(descriptor);
  return error == 0;
}

// --- Phase ---

PyObject* phase_begin(PyObject* self, PyObject*) {
  enter_phase<Use::kCall>(*reinterpret_cast<Phase*>(self));
  Py_RETURN_NONE;
}

PyObject* phase_end(PyObject* self, PyObject*) {
  exit_phase<Use::kCall>(*reinterpret_cast<Phase*>(self));
  Py_RETURN_NONE;
}

/// Only of one that could not be registered: all others live forever.
void phase_dealloc(PyObject* self) {
  auto* const phase = reinterpret_cast<Phase*>(self);
  Py_XDECREF(reinterpret_cast<PyObject*>(phase->enter));
  Py_XDECREF(reinterpret_cast<PyObject*>(phase->exit));
  Py_DECREF(phase->name);
  PyObject_Free(self);
}

PyObject* phase_name(PyObject* self, void*) {
  return Py_NewRef(reinterpret_cast<Phase*>(self)->name);
}

PyObject* phase_repr(PyObject* self) {
  return PyUnicode_FromFormat("gpu_phase(%R)", reinterpret_cast<Phase*>(self)->name);
}

PyObject* phase_call(PyObject* self, PyObject* arguments, PyObject* keywords) {
  if (PyTuple_GET_SIZE(arguments) != 1 || (keywords != nullptr && PyDict_GET_SIZE(keywords) != 0) ||
      !PyCallable_Check(PyTuple_GET_ITEM(arguments, 0))) {
    PyErr_Format(PyExc_TypeError, "%R decorates one function; to time a block use `with %R:`", self,
                 self);
    return nullptr;
  }
  PyObject* const function = PyTuple_GET_ITEM(arguments, 0);
  return object_or(
      [=] { return PyObject_CallFunctionObjArgs(python_hooks.decorate, self, function, nullptr); },
      [function] { return Py_NewRef(function); });
}

/// A handle survives pickling and copying (a module that holds one may be sent to a worker) by
/// its name.
PyObject* phase_reduce(PyObject* self, PyObject*) {
  PyObject* module = PyImport_ImportModule("pyinstrument_gpu");
  if (module == nullptr) return nullptr;
  PyObject* function = PyObject_GetAttrString(module, "gpu_phase");
  Py_DECREF(module);
  if (function == nullptr) return nullptr;
  return Py_BuildValue("N(O)", function, reinterpret_cast<Phase*>(self)->name);
}

PyMethodDef phase_methods[] = {
    {"begin", phase_begin, METH_NOARGS,
     "begin($self, /)\n--\n\nOpen the phase on this thread, as `with` "
     "does. Never raises and never waits for the GPU."},
    {"end", phase_end, METH_NOARGS,
     "end($self, /)\n--\n\nClose the innermost phase of this name that "
     "begin() has opened in this task\nor, if there is none, a block; or "
     "else what another task of this thread has\nopened by begin().\n\n"
     "If none is open, that is only counted, in `Run.dropped`."},
    {"__reduce__", phase_reduce, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef phase_getset[] = {{"name", phase_name, nullptr, "The phase's name.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject phase_type_object = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.Phase";
  type.tp_basicsize = sizeof(Phase);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc =
      "The handle of a phase: a context manager, a decorator, and begin() and end().\n\n"
      "Made by gpu_phase().";
  type.tp_dealloc = phase_dealloc;
  type.tp_methods = phase_methods;
  type.tp_getset = phase_getset;
  type.tp_repr = phase_repr;
  type.tp_call = phase_call;
  return type;
}();

bool ready_phase_type() {
  if (PyType_Ready(&phase_method_type) != 0 || PyType_Ready(&phase_descriptor_type) != 0 ||
      PyType_Ready(&phase_type_object) != 0)
    return false;
  if (!add_descriptor(phase_type_object.tp_dict, "__enter__", false) ||
      !add_descriptor(phase_type_object.tp_dict, "__exit__", true))
    return false;
  PyType_Modified(&phase_type_object);
  return true;
}

Phase* new_phase(PyObject* name, uint32_t id, const std::string& utf8) {
  auto* phase = PyObject_New(Phase, &phase_type_object);
  if (phase == nullptr) return nullptr;
  phase->id = id;
  phase->name = Py_NewRef(name);
  phase->nvtx = nvtx_name(utf8);
  phase->enter = new_method(phase, call_enter);
  phase->exit = new_method(phase, call_exit);
  if (phase->enter != nullptr && phase->exit != nullptr) return phase;
  Py_DECREF(reinterpret_cast<PyObject*>(phase));
  return nullptr;
}

Phase* not_a_phase(PyObject* argument) {
  PyErr_Format(PyExc_TypeError, "a Phase is needed, got %.200s", Py_TYPE(argument)->tp_name);
  return nullptr;
}

}  // namespace pig
