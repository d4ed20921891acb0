// SPDX-License-Identifier: Apache-2.0
#include "hooks/call_listeners.h"

#include <algorithm>

namespace pig {

thread_local bool in_watched_call = false;

namespace {

/// Whether the error that is set was a listener's own, which is dropped.
bool drop_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

}  // namespace

bool CallListeners::add(PyObject* enter, PyObject* leave, bool hears_of_host) {
  if (count_ == kMost) return false;
  Py_INCREF(enter);
  Py_INCREF(leave);
  listeners_[count_++] = {enter, leave, hears_of_host};
  hear_of_host_ = hear_of_host_ || hears_of_host;
  return true;
}

void CallListeners::remove(PyObject* leave) {
  for (size_t i = 0; i < count_; ++i) {
    if (listeners_[i].leave != leave) continue;
    const Listener removed = listeners_[i];
    std::copy(listeners_ + i + 1, listeners_ + count_, listeners_ + i);
    --count_;
    hear_of_host_ = std::any_of(listeners_, listeners_ + count_,
                                [](const Listener& listener) { return listener.hears_of_host; });
    Py_DECREF(removed.enter);  // last: what goes with it may run any code
    Py_DECREF(removed.leave);
    return;
  }
}

bool CallListeners::enter(PyObject* args, PyObject* kwargs, Entered* entered, size_t& count) const {
  // A listener may go while another one is asked.
  Listener listeners[kMost];
  const size_t listening = count_;
  for (size_t i = 0; i < listening; ++i) {
    listeners[i] = listeners_[i];
    Py_INCREF(listeners[i].enter);
    Py_INCREF(listeners[i].leave);
  }
  bool is_quiet = true;
  for (size_t i = 0; i < listening; ++i) {
    PyObject* token = nullptr;
    if (is_quiet) {
      token = PyObject_CallFunctionObjArgs(listeners[i].enter, args,
                                           kwargs != nullptr ? kwargs : Py_None, nullptr);
      if (token == nullptr) is_quiet = drop_error();
    }
    Py_DECREF(listeners[i].enter);
    if (token != nullptr && token != Py_None) {
      entered[count++] = {listeners[i].leave, token};
    } else {
      Py_XDECREF(token);
      Py_DECREF(listeners[i].leave);
    }
  }
  return is_quiet;
}

bool CallListeners::leave(Entered* entered, size_t count, PyObject* args, bool succeeded) {
  bool is_quiet = true;
  while (count > 0) {
    const Entered& last = entered[--count];
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);  // the call's own, or of a listener before
    PyObject* result = PyObject_CallFunctionObjArgs(last.leave, last.token, args,
                                                    succeeded ? Py_True : Py_False, nullptr);
    if (result == nullptr && !drop_error()) {
      is_quiet = false;
      Py_XDECREF(type);
      Py_XDECREF(value);
      Py_XDECREF(traceback);
    } else {
      PyErr_Restore(type, value, traceback);
    }
    Py_XDECREF(result);
    Py_DECREF(last.leave);
    Py_DECREF(last.token);
  }
  return is_quiet && succeeded;
}

}  // namespace pig
