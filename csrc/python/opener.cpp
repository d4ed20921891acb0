// SPDX-License-Identifier: Apache-2.0
#include "python/opener.h"

#include <utility>

#include "base/ticks.h"
#include "python/memory_error.h"

#if PY_VERSION_HEX < 0x030B0000
#include <frameobject.h>
#endif

namespace pig {
namespace {

int instruction_of(PyFrameObject* frame) {
#if PY_VERSION_HEX < 0x030B0000
  return frame->f_lasti * 2;
#else
  return PyFrame_GetLasti(frame);
#endif
}

/// New reference; nullptr where there is none, or no memory for the object.
PyFrameObject* caller_of(PyFrameObject* frame) {
  PyFrameObject* caller = PyFrame_GetBack(frame);
  if (PIG_UNLIKELY(caller == nullptr)) drop_memory_error();
  return caller;
}

/// New reference, or nullptr with an error set.
PyObject* bytes_of(PyCodeObject* code) {
#if PY_VERSION_HEX < 0x030B0000
  return Py_NewRef(code->co_code);
#else
  return PyCode_GetCode(code);
#endif
}

/// How this version of Python numbers the instructions that matter here; -1 for those it has not.
struct Opcodes {
  int setup_with = -1;    ///< up to 3.10
  int before_with = -1;   ///< 3.11 to 3.13
  int load_special = -1;  ///< from 3.14 on, a call follows
  int call = -1;
  int for_iter = -1;

  Opcodes() {
    PyObject* module = PyImport_ImportModule("opcode");
    PyObject* numbers = module != nullptr ? PyObject_GetAttrString(module, "opmap") : nullptr;
    if (numbers != nullptr && PyDict_Check(numbers)) {
      const auto find = [numbers](const char* name) {
        PyObject* number = PyDict_GetItemString(numbers, name);
        return number != nullptr ? static_cast<int>(PyLong_AsLong(number)) : -1;
      };
      setup_with = find("SETUP_WITH");
      before_with = find("BEFORE_WITH");
      load_special = find("LOAD_SPECIAL");
      call = find("CALL");
      for_iter = find("FOR_ITER");
    }
    Py_XDECREF(numbers);
    Py_XDECREF(module);
    PyErr_Clear();
  }
};

}  // namespace

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

Opener::Statement Opener::statement_at(const Place& place) {
  static const Opcodes opcodes;
  Statement statement = Statement::kOther;
  PyObject* bytes = bytes_of(place.code);
  if (bytes == nullptr) {
    PyErr_Clear();
    return statement;
  }
  const auto* code = reinterpret_cast<const unsigned char*>(PyBytes_AS_STRING(bytes));
  const int at = place.instruction;
  if (at >= 0 && at < PyBytes_GET_SIZE(bytes)) {
    const int opcode = code[at];
    if (opcode == opcodes.setup_with || opcode == opcodes.before_with ||
        (opcode == opcodes.call && at >= 2 && code[at - 2] == opcodes.load_special)) {
      statement = Statement::kWith;
    } else if (opcode == opcodes.for_iter) {
      statement = Statement::kFor;
    }
  }
  Py_DECREF(bytes);
  return statement;
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
    if (is_same && statement_at(nearest_) == Statement::kWith) return true;
  }
  return driver_.frame != nullptr && !is_on_stack(driver_) &&
         statement_at(driver_) != Statement::kOther;
}

}  // namespace pig
