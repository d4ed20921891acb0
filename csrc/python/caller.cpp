// SPDX-License-Identifier: Apache-2.0
#include "python/caller.h"

#include "hot/thread_state.h"
#include "python/python_error.h"

namespace pig {
namespace {

/// The context in which this one was entered. The layout of contexts is Python's own, but they show
/// the garbage collector what they refer to: that one, and variables.
uintptr_t context_around(uintptr_t task) {
  auto* const context = reinterpret_cast<PyObject*>(task);
  if (!PyContext_CheckExact(context)) return 0;
  const auto note_context = [](PyObject* object, void* found) {
    if (!PyContext_CheckExact(object)) return 0;
    *static_cast<PyObject**>(found) = object;
    return 1;
  };
  PyObject* found = nullptr;
  Py_TYPE(context)->tp_traverse(context, note_context, &found);
  return reinterpret_cast<uintptr_t>(found);
}

}  // namespace

uintptr_t make_task() noexcept {
  const ErrorAside aside;
  // To copy the context of a thread that has none makes both.
  PyObject* copy = PyContext_CopyCurrent();
  if (copy == nullptr) PyErr_Clear();
  Py_XDECREF(copy);
  return copy != nullptr ? reinterpret_cast<uintptr_t>(PyThreadState_Get()->context) : 0;
}

bool is_in_generator() noexcept {
  const ErrorAside aside;
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  PyCodeObject* code = PyFrame_GetCode(frame);
  const int flags = code->co_flags;
  Py_DECREF(code);
  return (flags & (CO_GENERATOR | CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR)) != 0;
}

void tell_tasks() {
  tasks = {[] { return caller_here<Use::kToken>().task; }, context_around};
}

}  // namespace pig
