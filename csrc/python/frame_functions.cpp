// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "python/bindings.h"
#include "python/phase_use.h"
#include "python/python_type.h"

namespace pig {
namespace {

PyObject* frame_begin(PyObject*, PyObject* argument) {
  const Phase* phase = phase_argument(argument);
  if (phase == nullptr) return nullptr;
  nvtx_push(phase->nvtx);
  return PyLong_FromUnsignedLongLong(begin_token(*phase));
}

PyObject* close_frame(PyObject* const* arguments, Py_ssize_t count, Closing closing) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 2, "frame_end")) return nullptr;
  const Phase* phase = phase_argument(arguments[0]);
  if (phase == nullptr) return nullptr;
  const uint64_t token = PyLong_AsUnsignedLongLong(arguments[1]);
  if (token == ~uint64_t{0} && PyErr_Occurred() != nullptr) return nullptr;
  nvtx_pop(phase->nvtx);
  end_token(token, closing);
  Py_RETURN_NONE;
}

PyObject* frame_end(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return close_frame(arguments, count, Closing::kEnd);
}

PyObject* frame_cancel(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  return close_frame(arguments, count, Closing::kCancel);
}

PyObject* frame_rename(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 2, "frame_rename")) return nullptr;
  const Phase* phase = phase_argument(arguments[0]);
  if (phase == nullptr) return nullptr;
  const uint64_t token = PyLong_AsUnsignedLongLong(arguments[1]);
  if (token == ~uint64_t{0} && PyErr_Occurred() != nullptr) return nullptr;
  rename_token(token, *phase);
  Py_RETURN_NONE;
}

}  // namespace

PyMethodDef frame_functions[] = {
    {"frame_begin", frame_begin, METH_O, "frame_begin(phase, /)\n--\n\n"},
    {"frame_end", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(frame_end)),
     METH_FASTCALL, "frame_end(phase, token, /)\n--\n\n"},
    {"frame_cancel", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(frame_cancel)),
     METH_FASTCALL, "frame_cancel(phase, token, /)\n--\n\n"},
    {"frame_rename", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(frame_rename)),
     METH_FASTCALL, "frame_rename(phase, token, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
