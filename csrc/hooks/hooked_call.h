// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_glance.h"
#include "hooks/call_hook.h"
#include "hooks/call_listeners.h"
#include "hooks/call_observer.h"

namespace pig {

/// A function whose calls come by a trampoline of its own, and who observes them. It is never
/// freed, and the trampoline calls through where nobody hears: a thread may be inside it, and
/// whoever has kept its address may call it at any time.
class HookedCall {
 public:
  /// Whether no listener needs a call. `self` is nullptr where there are no arguments.
  bool is_quiet(PyObject* self, PyObject* const* others, Py_ssize_t count,
                bool has_keywords) const {
    return in_watched_call || listeners.empty() ||
           (self != nullptr && !listeners.hear_of_host() &&
            stays_on_host(glance, self, others, count, has_keywords));
  }

  /// Has the calls come by the trampoline. False where that can't be.
  virtual bool install(Called called) = 0;
  /// False after somebody else has hooked the function.
  virtual bool is_installed() const = 0;
  virtual void take_back() = 0;

  const void* what = nullptr;  ///< that is hooked, only to be compared
  HookedCall* next = nullptr;
  CallGlance glance = CallGlance::never;
  CallListeners listeners;
  CallObservers observers;

 protected:
  ~HookedCall() = default;
};

/// Of one that was never hooked; nullptr where it can't be, or too many were.
HookedCall* new_hooked_method(PyObject* method);
HookedCall* new_hooked_function(PyObject* function);

/// Arguments as a tuple, of which the first may stand apart; nullptr with an error set.
inline PyObject* tuple_of(PyObject* first, PyObject* const* others, Py_ssize_t count) {
  const Py_ssize_t shift = first != nullptr ? 1 : 0;
  PyObject* tuple = PyTuple_New(count + shift);
  if (tuple == nullptr) return nullptr;
  if (first != nullptr) PyTuple_SET_ITEM(tuple, 0, Py_NewRef(first));
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SET_ITEM(tuple, i + shift, Py_NewRef(others[i]));
  return tuple;
}

}  // namespace pig
