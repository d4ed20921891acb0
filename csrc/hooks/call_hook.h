// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_glance.h"
#include "hooks/call_observer.h"

namespace pig {

/// How a function in Python that is hooked is called.
enum class Called {
  anyhow,
  /// By a slot of its class, or as `function(*args)`. On Python 3.11 other calls are not heard of,
  /// and the function's type stays.
  from_c,
};

/// Calls a listener for each call of a function: a method that a class implements in C, such as
/// `torch.Tensor.item`, of whose arguments `self` is the first; a builtin function, such as
/// `torch.where`; or one in Python. False, with no error set, where it can't be hooked.
bool hook_call(PyObject* function, CallGlance glance, PyObject* enter, PyObject* leave,
               bool hears_of_host, Called called);

/// Takes the listener with this `leave` back, from all functions.
void unhook_calls(PyObject* leave);

/// Calls an observer for the calls, instead of listeners. It must live forever. Calling it again
/// does nothing.
bool observe_call(PyObject* function, ObserverOf which, CallObserver& observer,
                  Called called = Called::anyhow);

/// Takes these observers back, from all functions.
void unobserve_calls(ObserverOf which);

}  // namespace pig
