// SPDX-License-Identifier: Apache-2.0
//
// One use of a phase by a decorated function: `with frame(phase): ...`. It is open from the call
// that makes it, so that nothing can come between, and closes exactly once: as the block ends, or
// at the latest as it is freed.
//
// A `with` statement binds `__enter__` and `__exit__`, which would make two objects. Here both are
// the frame itself, which is called with no argument or with three.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "python/bindings.h"
#include "python/error_aside.h"
#include "python/memory_error.h"
#include "python/phase_use.h"
#include "python/python_type.h"

namespace pig {
namespace {

struct FrameObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
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

PyTypeObject frame_type_object = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.Frame";
  type.tp_basicsize = sizeof(FrameObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(FrameObject, vectorcall);
  type.tp_call = PyVectorcall_Call;
  type.tp_dealloc = frame_dealloc;
  return type;
}();

namespace {

// --- what `with` finds as __enter__ and __exit__ ---

PyObject* itself(PyObject* self, PyObject* instance, PyObject*) {
  return Py_NewRef(instance != nullptr ? instance : self);
}

PyTypeObject itself_type = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.FrameItself";
  type.tp_basicsize = sizeof(PyObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_descr_get = itself;
  return type;
}();

/// What stands for all frames while nothing is recorded and no tool wants ranges, and where there
/// is no memory. Never freed.
FrameObject no_frame = {PyObject_HEAD_INIT(&frame_type_object) frame_call, nullptr, 0};

PyObject* frame(PyObject*, PyObject* argument) {
  const Phase* phase = phase_argument(argument);
  if (phase == nullptr) return nullptr;
  if (active_epoch.load(std::memory_order_relaxed) == 0 && !nvtx_active)
    return Py_NewRef(reinterpret_cast<PyObject*>(&no_frame));
  auto* frame = PyObject_New(FrameObject, &frame_type_object);
  if (frame == nullptr)
    return drop_memory_error() ? Py_NewRef(reinterpret_cast<PyObject*>(&no_frame)) : nullptr;
  frame->vectorcall = frame_call;
  frame->phase = phase;  // not counted: it lives forever
  nvtx_push(phase->nvtx);
  frame->token = begin_token(*phase);
  return reinterpret_cast<PyObject*>(frame);
}

}  // namespace

bool ready_frame_type() {
  if (PyType_Ready(&frame_type_object) != 0 || PyType_Ready(&itself_type) != 0) return false;
  PyObject* descriptor = PyObject_New(PyObject, &itself_type);
  if (descriptor == nullptr) return false;
  const bool is_set =
      PyDict_SetItemString(frame_type_object.tp_dict, "__enter__", descriptor) == 0 &&
      PyDict_SetItemString(frame_type_object.tp_dict, "__exit__", descriptor) == 0;
  Py_DECREF(descriptor);
  PyType_Modified(&frame_type_object);
  return is_set;
}

PyMethodDef frame_functions[] = {{"frame", frame, METH_O, "frame(phase, /)\n--\n\n"},
                                 {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
