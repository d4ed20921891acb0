// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_glance.h"
#include "hooks/call_observer.h"

namespace pig {

/// Has a listener hear of the calls of a method that a class implements in C, such as
/// `torch.Tensor.item`; the first of the arguments is `self`. False, with no error set, where it
/// can't be hooked.
bool hook_method(PyObject* method, CallGlance glance, PyObject* enter, PyObject* leave,
                 bool hears_of_host);

/// Takes the listener with this `leave` back, from all methods.
void unhook_methods(PyObject* leave);

/// Has an observer hear of the calls, instead of listeners. It must live for ever.
bool observe_method(PyObject* method, ObserverOf which, CallObserver& observer);

/// Takes these observers back, from all methods.
void unobserve_methods(ObserverOf which);

}  // namespace pig
