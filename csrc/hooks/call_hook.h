// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_listener.h"
#include "hooks/call_observer.h"

namespace pig {

/// How a function in Python that is hooked is called.
enum class Called {
  anyhow,
  /// By a slot of its class, or as `function(*args)`. On Python 3.11 other calls are not observed,
  /// and the function's type stays.
  from_c,
};

/// Calls a listener for each call of a function: a method that a class implements in C, such as
/// `torch.Tensor.item`, of whose arguments `self` is the first; a builtin function, such as
/// `torch.where`; or one in Python. False, with no error set, where it can't be hooked.
bool hook_call(PyObject* function, QuickCheck quick_check, PyObject* enter, PyObject* leave,
               Called called);

/// Takes the listener with this `leave` back, from all functions.
void unhook_calls(PyObject* leave);

/// Calls a listener for `tensor[index]` and `tensor[index] = value`, where the index may select
/// by value; the arguments are those of `__getitem__` and `__setitem__`. `base` is torch's class
/// that implements them in C. False, with no error set, where it isn't built as expected: then
/// nothing has changed.
bool hook_subscripts(PyObject* base, PyObject* enter_get, PyObject* enter_set, PyObject* leave,
                     QuickCheck quick_check);

/// Takes the listener with this `leave` back. After the last one everything is as it was.
void unhook_subscripts(PyObject* leave);

/// Calls an observer for the calls, instead of a listener. It must live forever. Calling it again
/// does nothing.
bool observe_call(PyObject* function, ObserverOf which, CallObserver& observer,
                  Called called = Called::anyhow);

/// Takes these observers back, from all functions.
void unobserve_calls(ObserverOf which);

/// The listeners of one function: those of the watch of syncs and of the automatic phases.
class CallListeners {
 public:
  /// False when there are too many.
  bool add(CallObservers& observers, PyObject* enter, PyObject* leave, QuickCheck quick_check);
  void remove(CallObservers& observers, PyObject* leave);

 private:
  static constexpr ObserverOf kPlaces[] = {ObserverOf::listener, ObserverOf::other_listener};
  CallListener listeners_[2];
};

/// A function whose calls come by a trampoline of its own, and who observes them. It is never
/// freed, and the trampoline calls through where nobody listens: a thread may be inside it, and
/// whoever has kept its address may call it at any time.
class HookedCall {
 public:
  /// Has the calls come by the trampoline. False where that can't be.
  virtual bool install(Called called) = 0;
  /// False after somebody else has hooked the function.
  virtual bool is_installed() const = 0;
  virtual void take_back() = 0;

  const void* what = nullptr;  ///< that is hooked, only to be compared
  HookedCall* next = nullptr;
  CallObservers observers;
  CallListeners listeners;

 protected:
  ~HookedCall() = default;
};

/// Of one that was never hooked; nullptr where it can't be, or too many were.
HookedCall* new_hooked_method(PyObject* method);
HookedCall* new_hooked_function(PyObject* function);

/// Has the interpreter ask a function in Python how to call it, each time. Only Python 3.11 needs
/// that; elsewhere nothing is done. False, with no error set, where that is impossible.
bool make_asking(PyObject* function);

/// Takes that back.
void make_plain(PyObject* function);

}  // namespace pig
