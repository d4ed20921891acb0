// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstddef>
#include <type_traits>

namespace pig {

/// Python functions that are called for the calls of one hooked function of torch.
///
/// A listener is a pair. `enter(args, kwargs)` is called before the function and returns a token,
/// or None where the call is of no interest; kwargs is None where there are none. With a token,
/// `leave(token, args, succeeded)` is called after it. Errors in them are dropped; what is no
/// `Exception`, such as the KeyboardInterrupt of a signal handler that happened to run in them,
/// goes on into the program.
///
/// All of it happens with the GIL. A listener may be removed while calls that it has entered go on:
/// these are left all the same.
class CallListeners {
 public:
  /// The watch of syncs and the automatic phases.
  static constexpr size_t kMost = 2;

  /// False when there are too many. `hears_of_host`: also of calls with tensors of the host alone.
  bool add(PyObject* enter, PyObject* leave, bool hears_of_host);
  /// Removes the listener with this `leave`, if there is one.
  void remove(PyObject* leave);

  bool empty() const { return count_ == 0; }
  bool hear_of_host() const { return hear_of_host_; }

  /// Calls `call` between the listeners. It returns an object, or an int that is 0; else nullptr or
  /// -1 with an error set.
  template <typename Call>
  auto around(PyObject* args, PyObject* kwargs, Call call) const -> decltype(call()) {
    using Result = decltype(call());
    if (args == nullptr) PyErr_Clear();
    // Without memory nobody hears of it: the function may still do its work.
    if (args == nullptr || !may_throw()) return call();
    Result failed{};  // nullptr
    if constexpr (!std::is_pointer_v<Result>) failed = -1;
    Entered entered[kMost];
    size_t count = 0;
    Result result = enter(args, kwargs, entered, count) ? call() : failed;
    const bool succeeded = result != failed;
    if (!leave(entered, count, args, succeeded) && succeeded) {
      if constexpr (std::is_pointer_v<Result>) Py_DECREF(result);
      result = failed;
    }
    return result;
  }

 private:
  struct Listener {
    PyObject* enter;
    PyObject* leave;
    bool hears_of_host;
  };
  struct Entered {
    PyObject* leave;
    PyObject* token;
  };

  /// False with an error set that is the program's.
  bool enter(PyObject* args, PyObject* kwargs, Entered* entered, size_t& count) const;
  static bool leave(Entered* entered, size_t count, PyObject* args, bool succeeded);

  Listener listeners_[kMost] = {};
  size_t count_ = 0;
  bool hear_of_host_ = false;
};

/// Whether the calling thread is in a call of which only the outermost matters: the hooks then call
/// through. Set by listeners.
extern thread_local bool in_watched_call;

}  // namespace pig
