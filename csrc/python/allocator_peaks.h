// SPDX-License-Identifier: Apache-2.0
//
// The peaks of PyTorch's allocator as the program sees them, while they are reset for the sake of
// phases.
//
// The allocator counts one peak of each of its statistics, since it was last reset. To know the
// peak of every phase, it has to be reset where phases begin and end. What the peaks were before
// that is kept here, by device. The builtin functions that return the statistics are hooked: the
// program gets the larger one of what it would get and what was kept. The program's own reset lets
// go of what was kept. So it sees what it would see without us, by whatever function of Python, as
// all of them call these few. Code in C++ that asks the allocator itself sees the reset peaks.
//
// The functions stay hooked for good: what was kept is wanted until the program resets its peaks.
//
// All of it happens with the GIL. Without one (free-threaded Python) nothing can be hooked.
#pragma once

#include <Python.h>

#include <map>

#include "hooks/call_observer.h"

namespace pig {

/// Called at the program's own resets.
class PeakResetListener {
 public:
  virtual void before_reset(long device) = 0;
  virtual void after_reset(long device) = 0;

 protected:
  ~PeakResetListener() = default;  // it lives forever
};

class AllocatorPeaks {
 public:
  static AllocatorPeaks& instance();

  /// Hooks functions of a device's number. `reads` return the statistics, `resets` reset their
  /// peaks. False, with no error set, where one of them can't be hooked. Calling it again does
  /// nothing.
  bool hook(PyObject* reads, PyObject* resets, PeakResetListener& listener);

  /// Keeps the peaks in these statistics of the device, which are about to be reset. False, with no
  /// error set, where there is no memory for that.
  bool keep(long device, PyObject* statistics);

 private:
  /// Of calls that read.
  class Reads final : public CallObserver {
   public:
    Observing begins(ObservedCall& call) override;
    bool ends(ObservedCall& call, PyObject* result) override;
  };
  /// Of calls that reset.
  class Resets final : public CallObserver {
   public:
    Observing begins(ObservedCall& call) override;
    bool ends(ObservedCall& call, PyObject* result) override;
  };

  Reads reads_;
  Resets resets_;
  PeakResetListener* listener_ = nullptr;
  std::map<long, PyObject*> kept_;  ///< dictionaries like the allocator's statistics
};

/// While it lives, this thread's calls of the hooked functions are our own: they see the
/// allocator's numbers, and reset nothing but these.
class OwnAllocatorCalls {
 public:
  OwnAllocatorCalls();
  ~OwnAllocatorCalls();
  OwnAllocatorCalls(const OwnAllocatorCalls&) = delete;
  OwnAllocatorCalls& operator=(const OwnAllocatorCalls&) = delete;
};

}  // namespace pig
