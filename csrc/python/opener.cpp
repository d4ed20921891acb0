// SPDX-License-Identifier: Apache-2.0
#include "python/opener.h"

#include <utility>

#include "base/ticks.h"
#include "python/python_error.h"
#include "python/python_hooks.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

namespace pig {
namespace {

/// New reference; nullptr where there is none, or no memory for the object.
PyFrameObject* caller_of(PyFrameObject* frame) {
  PyFrameObject* caller = PyFrame_GetBack(frame);
  if (PIG_UNLIKELY(caller == nullptr)) drop_memory_error();
  return caller;
}

/// Whether one stands at a place: the one that is named, or any.
bool is_statement(PyCodeObject* code, int instruction, const char* named = nullptr) {
  PyObject* found = PyObject_CallFunction(python_hooks.statement, "Oi", code, instruction);
  PyErr_Clear();
  const bool is_one = found != nullptr && found != Py_None &&
                      (named == nullptr || PyUnicode_CompareWithASCIIString(found, named) == 0);
  Py_XDECREF(found);
  return is_one;
}

}  // namespace

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_lasti * 2;
#else
  return PyFrame_GetLasti(frame);
#endif
}

PyFrameObject* frame_on_stack(const PyFrameObject* frame) {
  PyFrameObject* each = PyEval_GetFrame();
  Py_XINCREF(each);
  while (each != nullptr && each != frame) {
    PyFrameObject* outer = caller_of(each);
    Py_DECREF(each);
    each = outer;
  }
  return each;
}

Opener::Opener(const Opener& other) : nearest_(other.nearest_), driver_(other.driver_) {
  Py_XINCREF(nearest_.code);
  Py_XINCREF(driver_.code);
}

Opener::Place Opener::place_of(PyFrameObject* frame) {
  return {frame, PyFrame_GetCode(frame), instruction_of(frame)};
}

void Opener::note(int frames) {
  forget();
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  for (; frames > 0 && frame != nullptr; --frames) {
    PyFrameObject* outer = caller_of(frame);
    Py_DECREF(frame);
    frame = outer;
  }
  if (frame == nullptr) return;
  nearest_ = place_of(frame);
  constexpr int kCoroutine = CO_COROUTINE | CO_ITERABLE_COROUTINE | CO_ASYNC_GENERATOR;
  while (frame != nullptr) {
    const Place place = place_of(frame);
    const int flags = place.code->co_flags;
    if ((flags & (CO_GENERATOR | kCoroutine)) == 0) {
      driver_ = place;
      Py_DECREF(frame);
      return;
    }
    Py_DECREF(place.code);
    PyFrameObject* outer = (flags & kCoroutine) == 0 ? caller_of(frame) : nullptr;
    Py_DECREF(frame);
    frame = outer;
  }
}

void Opener::forget() {
  for (Place* place : {&nearest_, &driver_}) Py_XDECREF(std::exchange(*place, {}).code);
}

bool Opener::is_on_stack(const Place& place) {
  PyFrameObject* frame = frame_on_stack(place.frame);
  if (frame == nullptr) return false;
  // Its memory may have become another frame's.
  PyCodeObject* code = PyFrame_GetCode(frame);
  Py_DECREF(code);
  Py_DECREF(frame);
  return code == place.code;
}

bool Opener::is_over() const {
  if (nearest_.frame == nullptr) return false;
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return false;
  if (frame == nearest_.frame && instruction_of(frame) == nearest_.instruction) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    const bool is_same = code == nearest_.code;
    Py_DECREF(code);
    if (is_same && is_statement(nearest_.code, nearest_.instruction, "with")) return true;
  }
  return driver_.frame != nullptr && !is_on_stack(driver_) &&
         is_statement(driver_.code, driver_.instruction);
}

}  // namespace pig
