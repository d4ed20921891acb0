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

/// Has a listener hear of the calls of a function: a builtin one, such as `torch.where`, or one in
/// Python. False, with no error set, where it can't be hooked.
bool hook_vectorcall(PyObject* function, CallGlance glance, PyObject* enter, PyObject* leave,
                     bool hears_of_host, Called called = Called::anyhow);

/// Takes the listener with this `leave` back, from all functions.
void unhook_vectorcalls(PyObject* leave);

/// Has an observer hear of the calls, instead of listeners. It must live for ever. Again: nothing.
bool observe_vectorcall(PyObject* function, ObserverOf which, CallObserver& observer,
                        Called called);

/// Takes these observers back, from all functions.
void unobserve_vectorcalls(ObserverOf which);

}  // namespace pig
