// SPDX-License-Identifier: Apache-2.0
//
// Functions, hooked in the word of their object by which the interpreter calls them.
//
// Of a builtin function, the C function in the entry of its table (method_hook.cpp) must stay: its
// hash and its equality are made of it, and torch.compile looks such functions up. But CPython lets
// a function say how it is to be called, its `vectorcall`. Many of torch's builtin functions take a
// tuple and a dictionary and have none; ours makes these two and calls the type's way. Functions in
// Python have one, which is kept and called (asking_function.h).
//
// Builtin functions that take one argument or an array of them have one, too. But the interpreter
// calls them without asking, once it has specialised a call: if the flags in the function's entry
// are exactly those that it knows. So the function gets a copy of its entry, with a flag that
// matters only while a class is made (METH_COEXIST). Each call is then made by the `vectorcall`.
//
// As with methods, each function has a trampoline of its own for ever, which calls through where
// nobody listens.
#include "hooks/vectorcall_hook.h"

#include <array>
#include <utility>

#include "base/ticks.h"
#include "hooks/asking_function.h"
#include "hooks/call_listeners.h"

namespace pig {
namespace {

struct HookedFunction {
  PyObject* function;
  vectorcallfunc original;  ///< nullptr: none
  PyMethodDef* entry;       ///< of a builtin function that has one; nullptr for others
  PyMethodDef asking_entry;
  CallGlance glance;
  CallListeners listeners;
  CallObservers observers;
};

constexpr size_t kMost = 128;
HookedFunction functions[kMost];
size_t function_count = 0;

vectorcallfunc vectorcall_of(PyObject* function) {
  return PyCFunction_CheckExact(function)
             ? reinterpret_cast<PyCFunctionObject*>(function)->vectorcall
             : reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
}

void set_vectorcall(PyObject* function, vectorcallfunc call) {
  if (PyCFunction_CheckExact(function)) {
    reinterpret_cast<PyCFunctionObject*>(function)->vectorcall = call;
    return;
  }
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), call);
#else
  reinterpret_cast<PyFunctionObject*>(function)->vectorcall = call;
#endif
}

bool is_hookable(PyObject* function) {
  if (PyFunction_Check(function)) return vectorcall_of(function) != nullptr;
  if (!PyCFunction_CheckExact(function)) return false;
  const int flags = PyCFunction_GET_FLAGS(function);
  if ((flags & METH_VARARGS) == 0) return vectorcall_of(function) != nullptr;
  return (flags & METH_KEYWORDS) != 0 && vectorcall_of(function) == nullptr;
}

PyMethodDef*& entry_of(PyObject* function) {
  return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
}

/// The arguments of a vectorcall as a tuple and, if there are keywords, a dictionary. False when
/// there is no memory for them, with an error set.
bool unpack(PyObject* const* args, Py_ssize_t count, PyObject* names, PyObject** tuple,
            PyObject** dictionary) {
  *dictionary = nullptr;
  *tuple = PyTuple_New(count);
  if (*tuple == nullptr) return false;
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(args[i]);
    PyTuple_SET_ITEM(*tuple, i, args[i]);
  }
  const Py_ssize_t named = names != nullptr ? PyTuple_GET_SIZE(names) : 0;
  bool is_complete = named == 0 || (*dictionary = PyDict_New()) != nullptr;
  for (Py_ssize_t i = 0; is_complete && i < named; ++i)
    is_complete = PyDict_SetItem(*dictionary, PyTuple_GET_ITEM(names, i), args[count + i]) == 0;
  if (is_complete) return true;
  Py_CLEAR(*tuple);
  Py_CLEAR(*dictionary);
  return false;
}

PyObject* call_original(const HookedFunction& hooked, PyObject* const* args, size_t nargsf,
                        PyObject* names) {
  if (PIG_LIKELY(hooked.original != nullptr))
    return hooked.original(hooked.function, args, nargsf, names);
  PyObject *tuple, *dictionary;
  if (!unpack(args, PyVectorcall_NARGS(nargsf), names, &tuple, &dictionary)) return nullptr;
  PyObject* result = PyCFunction_Type.tp_call(hooked.function, tuple, dictionary);
  Py_DECREF(tuple);
  Py_XDECREF(dictionary);
  return result;
}

PyObject* call_hooked(const HookedFunction& hooked, PyObject* const* args, size_t nargsf,
                      PyObject* names) {
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (!hooked.observers.empty()) {
    const ObservedCall call{count > 0 ? args[0] : nullptr, args + 1, count > 0 ? count - 1 : 0,
                            count > 0 ? names : nullptr};
    return hooked.observers.around(call,
                                   [&] { return call_original(hooked, args, nargsf, names); });
  }
  const bool has_keywords = names != nullptr && PyTuple_GET_SIZE(names) > 0;
  const bool is_quiet = in_watched_call || hooked.listeners.empty() ||
                        (count > 0 && !hooked.listeners.hear_of_host() &&
                         stays_on_host(hooked.glance, args[0], args + 1, count - 1, has_keywords));
  if (is_quiet) return call_original(hooked, args, nargsf, names);
  PyObject *tuple, *dictionary;
  if (!unpack(args, count, names, &tuple, &dictionary)) return nullptr;
  const auto call = [&] {
    return hooked.original != nullptr
               ? hooked.original(hooked.function, args, nargsf, names)
               : PyCFunction_Type.tp_call(hooked.function, tuple, dictionary);
  };
  PyObject* result = hooked.listeners.around(tuple, dictionary, call);
  Py_DECREF(tuple);
  Py_XDECREF(dictionary);
  return result;
}

template <size_t I>
PyObject* trampoline(PyObject*, PyObject* const* args, size_t nargsf, PyObject* names) {
  return call_hooked(functions[I], args, nargsf, names);
}

template <size_t... I>
std::array<vectorcallfunc, kMost> make_trampolines(std::index_sequence<I...>) {
  return {{trampoline<I>...}};
}

vectorcallfunc trampoline_of(size_t index) {
  static const auto trampolines = make_trampolines(std::make_index_sequence<kMost>());
  return trampolines[index];
}

/// The index of one that was hooked before, or a new one; kMost where that can't be had.
size_t index_of(PyObject* function) {
  for (size_t i = 0; i < function_count; ++i)
    if (functions[i].function == function) return i;
  if (function_count == kMost || !is_hookable(function)) return kMost;
  Py_INCREF(function);  // for good
  HookedFunction& hooked = functions[function_count];
  hooked.function = function;
  hooked.original = vectorcall_of(function);
  if (PyCFunction_CheckExact(function) && hooked.original != nullptr) {
    hooked.entry = entry_of(function);
    hooked.asking_entry = *hooked.entry;
    hooked.asking_entry.ml_flags |= METH_COEXIST;
  }
  return function_count++;
}

bool is_in_use(const HookedFunction& hooked) {
  return !hooked.listeners.empty() || !hooked.observers.empty();
}

/// Points a function at its trampoline. False where it is somebody else's since, or before: theirs
/// stays, and ours would come by twice.
bool install(size_t index, Called called) {
  HookedFunction& hooked = functions[index];
  PyObject* function = hooked.function;
  if (vectorcall_of(function) != hooked.original) return false;
  if (PyFunction_Check(function) && called == Called::anyhow && !make_asking(function))
    return false;
  if (hooked.entry != nullptr) {
    if (entry_of(function) != hooked.entry) return false;
    entry_of(function) = &hooked.asking_entry;
  }
  set_vectorcall(function, trampoline_of(index));
  return true;
}

void take_back_if_unused(size_t index) {
  HookedFunction& hooked = functions[index];
  PyObject* function = hooked.function;
  if (is_in_use(hooked) || vectorcall_of(function) != trampoline_of(index)) return;
  set_vectorcall(function, hooked.original);
  if (hooked.entry != nullptr) entry_of(function) = hooked.entry;
  make_plain(function);
}

}  // namespace

bool hook_vectorcall(PyObject* function, CallGlance glance, PyObject* enter, PyObject* leave,
                     bool hears_of_host, Called called) {
#ifdef Py_GIL_DISABLED
  return false;  // other threads may be reading the word
#endif
  const size_t index = index_of(function);
  if (index == kMost) return false;
  HookedFunction& hooked = functions[index];
  if (!hooked.observers.empty()) return false;
  if (hooked.listeners.empty() && !install(index, called)) return false;
  hooked.glance = glance;
  return hooked.listeners.add(enter, leave, hears_of_host);
}

void unhook_vectorcalls(PyObject* leave) {
  for (size_t i = 0; i < function_count; ++i) {
    HookedFunction& hooked = functions[i];
    hooked.listeners.remove(leave);
    take_back_if_unused(i);
  }
}

bool observe_vectorcall(PyObject* function, ObserverOf which, CallObserver& observer,
                        Called called) {
#ifdef Py_GIL_DISABLED
  return false;
#endif
  const size_t index = index_of(function);
  if (index == kMost) return false;
  HookedFunction& hooked = functions[index];
  if (hooked.observers.of(which) == &observer)
    return vectorcall_of(function) == trampoline_of(index);
  if (!hooked.listeners.empty() || hooked.observers.of(which) != nullptr) return false;
  if (hooked.observers.empty() && !install(index, called)) return false;
  hooked.observers.of(which) = &observer;
  return true;
}

void unobserve_vectorcalls(ObserverOf which) {
  for (size_t i = 0; i < function_count; ++i) {
    functions[i].observers.of(which) = nullptr;
    take_back_if_unused(i);
  }
}

}  // namespace pig
