// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/call_observer.h"

namespace pig {

/// How to tell quickly, by its arguments, that a call of torch touches no device. Python has
/// the names (`_C.pyi`).
enum class QuickCheck : int {
  never = 0,      ///< it can't be told
  first = 1,      ///< its first argument is a tensor of the host
  only = 2,       ///< as `first`, or there are other arguments (`torch.where`)
  arguments = 3,  ///< all are tensors of the host or plain numbers
  to = 4,         ///< a tensor of the host, and a dtype or the CPU (`Tensor.to`)
  index = 5,      ///< an index of numbers, slices and tensors of the host
  result = 6,     ///< as `never`, and `leave` has what the call returns for `succeeded`
};

/// A pair of functions in Python that are called for the calls of one hooked function of torch.
///
/// `enter(args, kwargs)` is called before the function and returns a token, or None where the call
/// is of no interest; kwargs is None where there are none. With a token, `leave(token, args,
/// succeeded)` is called after it. Errors in them are dropped; what is no `Exception`, such as the
/// KeyboardInterrupt of a signal handler that happened to run in them, goes on into the program.
///
/// All of it happens with the GIL.
class CallListener final : public CallObserver {
 public:
  void set(PyObject* enter, PyObject* leave, QuickCheck quick_check);
  void clear();
  /// Whether it is the one with this `leave`.
  bool is_of(PyObject* leave) const { return leave_ == leave; }

  Observing begins(ObservedCall& call) override;
  bool ends(ObservedCall& call, PyObject* result) override;

 private:
  PyObject* enter_ = nullptr;
  PyObject* leave_ = nullptr;
  QuickCheck quick_check_ = QuickCheck::never;
};

/// Whether the calling thread is in a call of which only the outermost matters: the listeners are
/// then not called. Set by listeners.
extern thread_local bool in_watched_call;

}  // namespace pig
