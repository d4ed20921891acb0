// SPDX-License-Identifier: Apache-2.0
#include "python/phase_type.h"

#include <cstddef>

#include "python/phase_use.h"
#include "python/python_error.h"
#include "python/python_hooks.h"
#include "python/python_type.h"

namespace pig {

struct PhaseMethod {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  Phase* phase;
};

namespace {

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

PyTypeObject phase_method_type = static_type<PhaseMethod>(
    "pyinstrument_gpu.native._C.PhaseMethod",
    [](PyTypeObject& type) { call_by_vectorcall(type, offsetof(PhaseMethod, vectorcall)); });

PhaseMethod* new_method(Phase* phase, vectorcallfunc function) {
  auto* method = PyObject_New(PhaseMethod, &phase_method_type);
  if (method == nullptr) return nullptr;
  method->vectorcall = function;
  method->phase = phase;  // not counted: both live forever
  return method;
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

PyTypeObject phase_type_object =
    static_type<Phase>("pyinstrument_gpu.native._C.Phase", [](PyTypeObject& type) {
      type.tp_doc =
          "The handle of a phase: a context manager, a decorator, and begin() and end().\n\n"
          "Made by gpu_phase().";
      type.tp_dealloc = phase_dealloc;
      type.tp_methods = phase_methods;
      type.tp_getset = phase_getset;
      type.tp_repr = phase_repr;
      type.tp_call = phase_call;
    });

bool ready_phase_type() {
  return ready_type(phase_method_type) &&
         ready_type(phase_type_object,
                    {{"__enter__", offsetof(Phase, enter)}, {"__exit__", offsetof(Phase, exit)}});
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
