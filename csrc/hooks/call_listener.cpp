// SPDX-License-Identifier: Apache-2.0
#include "hooks/call_listener.h"

#include <cstdint>
#include <utility>

#include "base/ticks.h"
#include "hooks/tensor_inspector.h"

namespace pig {

thread_local bool in_watched_call = false;

namespace {

bool is_host_target(PyObject* target) {
  const PyTypeObject* type = Py_TYPE(target);
  if (type == tensor_inspector.dtype) return true;
  if (type == &PyUnicode_Type) return PyUnicode_CompareWithASCIIString(target, "cpu") == 0;
  if (type != Py_TYPE(tensor_inspector.host_device)) return false;
  const int is_equal = PyObject_RichCompareBool(target, tensor_inspector.host_device, Py_EQ);
  if (is_equal < 0) PyErr_Clear();
  return is_equal == 1;
}

bool is_plain_argument(PyObject* argument) {
  const PyTypeObject* type = Py_TYPE(argument);
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         argument == Py_None || tensor_inspector.is_on_host(argument);
}

bool has_keywords(const ObservedCall& call) {
  return (call.names != nullptr && PyTuple_GET_SIZE(call.names) > 0) ||
         (call.keywords != nullptr && PyDict_GET_SIZE(call.keywords) > 0);
}

/// Selects nothing by the value of a tensor on a device.
bool is_plain_index(PyObject* index) {
  const PyTypeObject* type = Py_TYPE(index);
  if (type != &PyTuple_Type)
    return type == &PySlice_Type || index == Py_Ellipsis || is_plain_argument(index);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(index); ++i) {
    PyObject* const part = PyTuple_GET_ITEM(index, i);
    if (Py_TYPE(part) == &PyTuple_Type || !is_plain_index(part)) return false;
  }
  return true;
}

/// False says nothing.
bool stays_on_host(QuickCheck quick_check, const ObservedCall& call) {
  if (quick_check == QuickCheck::never || quick_check == QuickCheck::result || call.self == nullptr)
    return false;
  if (quick_check == QuickCheck::index) return is_plain_index(call.others[0]);
  if (quick_check == QuickCheck::only && (call.count > 0 || has_keywords(call))) return true;
  if (!tensor_inspector.is_on_host(call.self)) return false;
  if (quick_check == QuickCheck::first || quick_check == QuickCheck::only) return true;
  if (has_keywords(call)) return false;
  if (quick_check == QuickCheck::to) return call.count > 0 && is_host_target(call.others[0]);
  for (Py_ssize_t i = 0; i < call.count; ++i)
    if (!is_plain_argument(call.others[i])) return false;
  return true;
}

/// The positional arguments; nullptr with an error set.
PyObject* tuple_of(const ObservedCall& call) {
  const Py_ssize_t shift = call.self != nullptr ? 1 : 0;
  PyObject* tuple = PyTuple_New(call.count + shift);
  if (tuple == nullptr) return nullptr;
  if (call.self != nullptr) PyTuple_SET_ITEM(tuple, 0, Py_NewRef(call.self));
  for (Py_ssize_t i = 0; i < call.count; ++i)
    PyTuple_SET_ITEM(tuple, i + shift, Py_NewRef(call.others[i]));
  return tuple;
}

/// The others as a dictionary, or None where there are none; nullptr with an error set.
PyObject* dictionary_of(const ObservedCall& call) {
  if (!has_keywords(call)) return Py_NewRef(Py_None);
  if (call.names == nullptr) return Py_NewRef(call.keywords);
  PyObject* dictionary = PyDict_New();
  for (Py_ssize_t i = 0; dictionary != nullptr && i < PyTuple_GET_SIZE(call.names); ++i)
    if (PyDict_SetItem(dictionary, PyTuple_GET_ITEM(call.names, i), call.others[call.count + i]))
      Py_CLEAR(dictionary);
  return dictionary;
}

/// Whether the error that is set was a listener's own, which is dropped.
bool drop_error() {
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) return false;
  PyErr_Clear();
  return true;
}

}  // namespace

void CallListener::set(PyObject* enter, PyObject* leave, QuickCheck quick_check) {
  enter_ = Py_NewRef(enter);
  leave_ = Py_NewRef(leave);
  quick_check_ = quick_check;
}

void CallListener::clear() {
  PyObject* const before[] = {std::exchange(enter_, nullptr), std::exchange(leave_, nullptr)};
  for (PyObject* each : before) Py_XDECREF(each);
}

Observing CallListener::begins(ObservedCall& call) {
  if (PIG_LIKELY(in_watched_call || stays_on_host(quick_check_, call))) return Observing::ignored;
  PyObject* const args = tuple_of(call);
  PyObject* const kwargs = args != nullptr ? dictionary_of(call) : nullptr;
  if (kwargs == nullptr) PyErr_Clear();        // without memory; the function may still do its work
  PyObject* const enter = Py_XNewRef(enter_);  // it may be taken back while it is asked
  PyObject* leave = Py_XNewRef(leave_);
  PyObject* token = nullptr;
  bool failed = false;
  if (kwargs != nullptr && enter != nullptr) {
    token = PyObject_CallFunctionObjArgs(enter, args, kwargs, nullptr);
    failed = token == nullptr && !drop_error();
  }
  Py_XDECREF(kwargs);
  Py_XDECREF(enter);
  if (token != nullptr && token != Py_None) {
    call.subject = leave;  // its end needs all three, even if the listener was taken back since
    call.token = reinterpret_cast<uint64_t>(token);
    call.session = quick_check_ == QuickCheck::result ? 1 : 0;
    call.arguments = args;
    return Observing::begun;
  }
  Py_XDECREF(token);
  Py_XDECREF(args);
  Py_XDECREF(leave);
  return failed ? Observing::failed : Observing::ignored;
}

bool CallListener::ends(ObservedCall& call, PyObject* result) {
  auto* const leave = static_cast<PyObject*>(const_cast<void*>(call.subject));
  auto* const token = reinterpret_cast<PyObject*>(call.token);
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);  // the call's own
  PyObject* const told = result == nullptr ? Py_False : call.session != 0 ? result : Py_True;
  PyObject* left = PyObject_CallFunctionObjArgs(leave, token, call.arguments, told, nullptr);
  const bool is_quiet = left != nullptr || drop_error();
  if (is_quiet) {
    PyErr_Restore(type, value, traceback);
    type = value = traceback = nullptr;
  }
  for (PyObject* each : {type, value, traceback, left, token, call.arguments, leave})
    Py_XDECREF(each);  // what goes with them may run any code
  return is_quiet;
}

}  // namespace pig
