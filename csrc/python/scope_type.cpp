// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <utility>

#include "python/bindings.h"
#include "python/error_aside.h"
#include "python/memory_error.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "python/python_type.h"

namespace pig {
namespace {

struct ScopeObject {
  PyObject_HEAD
  Phase* phase;
  uint64_t token;
  nvtxRangeId_t nvtx;
};

void close(ScopeObject* scope) {
  nvtx_end(std::exchange(scope->nvtx, 0));
  end_token(std::exchange(scope->token, 0), Closing::kEnd);
}

PyObject* scope_enter(PyObject* self, PyObject*) {
  auto* scope = reinterpret_cast<ScopeObject*>(self);
  close(scope);
  scope->nvtx = nvtx_start(scope->phase->nvtx);
  scope->token = begin_token(*scope->phase);
  return Py_NewRef(self);
}

PyObject* scope_exit(PyObject* self, PyObject* const*, Py_ssize_t count) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 3, "__exit__")) return nullptr;
  close(reinterpret_cast<ScopeObject*>(self));
  Py_RETURN_NONE;
}

/// A block that an exception has kept from being left properly ends here.
void scope_dealloc(PyObject* self) {
  {
    const ErrorAside aside;
    close(reinterpret_cast<ScopeObject*>(self));
  }
  PyObject_Free(self);
}

PyObject* scope_name(PyObject* self, void*) {
  return Py_NewRef(reinterpret_cast<ScopeObject*>(self)->phase->name);
}

PyObject* scope_repr(PyObject* self) {
  return PyUnicode_FromFormat("gpu_phase.scope(%R)",
                              reinterpret_cast<ScopeObject*>(self)->phase->name);
}

PyMethodDef scope_methods[] = {
    {"__enter__", scope_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(scope_exit)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef scope_getset[] = {{"name", scope_name, nullptr, "The phase's name.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject scope_type_object = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.Scope";
  type.tp_basicsize = sizeof(ScopeObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_doc = "A context manager that times one block. Made by gpu_phase.scope().";
  type.tp_dealloc = scope_dealloc;
  type.tp_methods = scope_methods;
  type.tp_getset = scope_getset;
  type.tp_repr = scope_repr;
  return type;
}();

static PyObject* gpu_phase_scope(PyObject*, PyObject* name) {
  Phase* phase = phase_of(name);
  if (phase == nullptr) return nullptr;
  auto* scope = PyObject_New(ScopeObject, &scope_type_object);
  // Without memory the handle, which closes the innermost span of its name.
  if (scope == nullptr)
    return drop_memory_error() ? Py_NewRef(reinterpret_cast<PyObject*>(phase)) : nullptr;
  scope->phase = phase;
  scope->token = 0;
  scope->nvtx = 0;
  return reinterpret_cast<PyObject*>(scope);
}

PyMethodDef scope_definition = {"scope", gpu_phase_scope, METH_O,
                                "scope(name, /)\n--\n\n"
                                "Return a new context manager that closes exactly the span it "
                                "opened,\nwherever it is left, also on another thread.\n\n"
                                "It allocates, so it is slower than gpu_phase(name). It raises "
                                "the same errors."};

}  // namespace pig
