// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/throwing.h"
#include "hot/active_recording.h"

namespace pig {

/// A call of a hooked function, and what its observer remembers of it until it ends. All references
/// are borrowed.
struct ObservedCall {
  PyObject* self;           ///< the first argument; nullptr: there is none
  PyObject* const* others;  ///< the other positional ones
  Py_ssize_t count;
  /// Names of further arguments, which stand behind the others; nullptr: there are none.
  PyObject* names = nullptr;
  /// Further arguments of a method, as a dictionary; nullptr: there are none.
  PyObject* keywords = nullptr;

  uint64_t token = 0;
  uint64_t session = 0;
  const void* subject = nullptr;
  PyObject* arguments = nullptr;  ///< of a listener, which owns them
};

enum class Observing {
  ignored,  ///< the call goes on, and its end is of no interest
  begun,
  failed,  ///< an error of the program's own is set: the call is not made
};

/// Is called for the calls of one hooked function.
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
  /// Of what has begun, also where the observer was taken back since. `result` is nullptr where the
  /// call raised, with the error set. False where an error of the program's own is set instead.
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

/// Who may observe the calls of one function, outermost first. The listeners are in Python
/// (call_listener.h).
enum class ObserverOf { memory, loop, listener, other_listener, modules };

class CallObservers {
 public:
  CallObserver*& of(ObserverOf which) { return observers_[static_cast<size_t>(which)]; }
  bool empty() const { return observers_ == Observers{}; }

  /// Makes a call between them.
  template <typename Function>
  PyObject* around(const ObservedCall& call, Function function) const {
    observed_calls.store(observed_calls.load(std::memory_order_relaxed) + 1,
                         std::memory_order_relaxed);
    return PIG_LIKELY(may_throw()) ? inside(call, function, 0) : function();  // there is no memory
  }

 private:
  using Observers = std::array<CallObserver*, 5>;

  template <typename Function>
  PyObject* inside(const ObservedCall& call, Function& function, size_t next) const {
    while (next < observers_.size() && observers_[next] == nullptr) ++next;
    if (next == observers_.size()) return function();
    CallObserver& observer = *observers_[next];
    ObservedCall seen = call;
    const Observing observing = observer.begins(seen);
    if (observing == Observing::failed) return nullptr;
    PyObject* result = inside(call, function, next + 1);
    if (observing == Observing::begun && !observer.ends(seen, result)) Py_CLEAR(result);
    return result;
  }

  Observers observers_{};
};

}  // namespace pig
