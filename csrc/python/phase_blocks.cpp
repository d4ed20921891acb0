// SPDX-License-Identifier: Apache-2.0
//
// Blocks that close exactly the span that they have opened: `with frame(phase): ...` of a decorated
// function, and `with gpu_phase.scope(name): ...`. One that an exception has kept from being left
// properly is closed at the latest as it is freed.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "python/bindings.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "python/python_error.h"
#include "python/python_type.h"

namespace pig {
namespace {

// --- of a decorated function ---

/// One use of its phase. It is open from the call that makes it, so that nothing can come between,
/// and is what `with` finds as `__enter__` and `__exit__`: called with no argument or with three.
struct FrameObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* itself;    ///< borrowed
  const Phase* phase;  ///< null once it is closed
  uint64_t token;
};

void close(FrameObject* frame) {
  const Phase* phase = std::exchange(frame->phase, nullptr);
  if (phase == nullptr) return;
  nvtx_pop(phase->nvtx);
  end_token(frame->token, Closing::kEnd);
}

PyObject* frame_call(PyObject* self, PyObject* const*, size_t nargsf, PyObject* keywords) {
  if (PyVectorcall_NARGS(nargsf) == 0) return Py_NewRef(self);
  if (!check_arguments(nargsf, keywords, 3, "__exit__")) return nullptr;
  close(reinterpret_cast<FrameObject*>(self));
  Py_RETURN_NONE;
}

void frame_dealloc(PyObject* self) {
  auto* const frame = reinterpret_cast<FrameObject*>(self);
  if (PIG_UNLIKELY(frame->phase != nullptr)) {
    const ErrorAside aside;
    close(frame);
  }
  PyObject_Free(self);
}

}  // namespace

PyTypeObject frame_type_object =
    static_type<FrameObject>("pyinstrument_gpu.native._C.Frame", [](PyTypeObject& type) {
      call_by_vectorcall(type, offsetof(FrameObject, vectorcall));
      type.tp_dealloc = frame_dealloc;
    });

namespace {

/// What stands for all frames while nothing is recorded and no tool wants ranges, and where there
/// is no memory. Never freed.
FrameObject no_frame = {PyObject_HEAD_INIT(&frame_type_object) frame_call,
                        reinterpret_cast<PyObject*>(&no_frame), nullptr, 0};

PyObject* frame(PyObject*, PyObject* argument) {
  const Phase* phase = phase_argument(argument);
  if (phase == nullptr) return nullptr;
  if (active_epoch.load(std::memory_order_relaxed) == 0 && !nvtx_active)
    return Py_NewRef(reinterpret_cast<PyObject*>(&no_frame));
  auto* frame = PyObject_New(FrameObject, &frame_type_object);
  if (frame == nullptr)
    return drop_memory_error() ? Py_NewRef(reinterpret_cast<PyObject*>(&no_frame)) : nullptr;
  frame->vectorcall = frame_call;
  frame->itself = reinterpret_cast<PyObject*>(frame);
  frame->phase = phase;  // not counted: it lives forever
  nvtx_push(phase->nvtx);
  frame->token = begin_token(*phase);
  return reinterpret_cast<PyObject*>(frame);
}

// --- scopes ---

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

PyMethodDef scope_methods[] = {{"__enter__", scope_enter, METH_NOARGS, nullptr},
                               {"__exit__", as_method(scope_exit), METH_FASTCALL, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyGetSetDef scope_getset[] = {{"name", scope_name, nullptr, "The phase's name.", nullptr},
                              {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

PyTypeObject scope_type_object =
    static_type<ScopeObject>("pyinstrument_gpu.native._C.Scope", [](PyTypeObject& type) {
      type.tp_doc = "A context manager that times one block. Made by gpu_phase.scope().";
      type.tp_dealloc = scope_dealloc;
      type.tp_methods = scope_methods;
      type.tp_getset = scope_getset;
      type.tp_repr = scope_repr;
    });

bool ready_phase_blocks() {
  return ready_type(scope_type_object) &&
         ready_type(frame_type_object, {{"__enter__", offsetof(FrameObject, itself)},
                                        {"__exit__", offsetof(FrameObject, itself)}});
}

PyMethodDef frame_functions[] = {{"frame", frame, METH_O, "frame(phase, /)\n--\n\n"},
                                 {nullptr, nullptr, 0, nullptr}};

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
