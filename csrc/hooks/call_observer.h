// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstdint>

#include "base/throwing.h"

namespace pig {

/// A call of a hooked function, and what its observer remembers of it until it ends. All references
/// are borrowed.
struct ObservedCall {
  PyObject* self;           ///< the first argument; nullptr: there is none
  PyObject* const* others;  ///< the other positional ones
  Py_ssize_t count;
  /// Names of further arguments, which stand behind the others; nullptr: there are none, or they
  /// are not looked at.
  PyObject* names = nullptr;

  uint64_t token = 0;
  uint64_t session = 0;
  const void* subject = nullptr;
};

enum class Observing {
  ignored,  ///< the call goes on, and its end is of no interest
  begun,
  failed,  ///< an error of the program's own is set: the call is not made
};

/// Is called for the calls of one hooked function, in C++. For Python functions there
/// are listeners (call_listeners.h).
///
/// Its methods throw nothing. They are not `noexcept`: where Python ends while they ask it
/// something, it unwinds the stacks of daemon threads (`pthread_exit`), which `noexcept` would make
/// an abort.
class CallObserver {
 public:
  CallObserver() = default;
  CallObserver(const CallObserver&) = delete;
  CallObserver& operator=(const CallObserver&) = delete;

  virtual Observing begins(ObservedCall& call) = 0;
  /// Of what has begun. `result` is nullptr where the call raised, with the error set. False where
  /// an error of the program's own is set instead.
  virtual bool ends(ObservedCall& call, PyObject* result) = 0;

 protected:
  ~CallObserver() = default;  // they live forever, as threads may be in calls
};

/// The one observer of a kind.
template <typename Kind>
CallObserver& the() {
  static auto* const observer = new Kind;
  return *observer;
}

/// Who may observe the calls of one function, outermost first. No function has one of memory and
/// one of the loop.
enum class ObserverOf { memory, loop, modules };

class CallObservers {
 public:
  CallObserver*& of(ObserverOf which) {
    if (which == ObserverOf::memory) return of_memory_;
    return which == ObserverOf::loop ? of_loop_ : of_modules_;
  }
  bool empty() const {
    return of_loop_ == nullptr && of_modules_ == nullptr && of_memory_ == nullptr;
  }

  /// Makes a call of which they hear.
  template <typename Function>
  PyObject* around(const ObservedCall& call, Function function) const;

 private:
  CallObserver* of_memory_ = nullptr;
  CallObserver* of_loop_ = nullptr;
  CallObserver* of_modules_ = nullptr;
};

/// Makes a call between the two.
template <typename Function>
PyObject* observe(CallObserver& observer, ObservedCall& call, Function function) {
  switch (observer.begins(call)) {
    case Observing::ignored:
      return function();
    case Observing::failed:
      return nullptr;
    case Observing::begun:
      break;
  }
  PyObject* result = function();
  if (!observer.ends(call, result)) Py_CLEAR(result);
  return result;
}

template <typename Function>
PyObject* CallObservers::around(const ObservedCall& call, Function function) const {
  if (PIG_UNLIKELY(!may_throw())) return function();  // there is no memory
  CallObserver* const inner = of_modules_;
  const auto inside = [&] {
    if (inner == nullptr) return function();
    ObservedCall seen = call;
    return observe(*inner, seen, function);
  };
  CallObserver* const outer = of_loop_ != nullptr ? of_loop_ : of_memory_;
  if (outer == nullptr) return inside();
  ObservedCall seen = call;
  return observe(*outer, seen, inside);
}

}  // namespace pig
