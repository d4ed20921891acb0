// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/driver.h"

namespace pig::cuda {

/// Makes a context current on the calling thread, in relaxed capture mode: what is called inside
/// never breaks a capture that another thread has under way. Afterwards both are as before.
class ContextScope {
 public:
  ContextScope(const Driver& driver, Context context) : driver_(driver) {
    if (const int result = driver.CtxGetCurrent(&before_)) {
      error_ = {"cuCtxGetCurrent", result};
    } else if (const int set = driver.CtxSetCurrent(context)) {
      error_ = {"cuCtxSetCurrent", set};
    } else if (const int exchanged = driver.ThreadExchangeStreamCaptureMode(&mode_)) {
      driver.CtxSetCurrent(before_);
      error_ = {"cuThreadExchangeStreamCaptureMode", exchanged};
    }
  }
  ~ContextScope() {
    if (error_) return;
    driver_.ThreadExchangeStreamCaptureMode(&mode_);
    driver_.CtxSetCurrent(before_);
  }
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

  const DriverError& error() const { return error_; }

 private:
  const Driver& driver_;
  Context before_ = nullptr;
  CaptureMode mode_ = kCaptureRelaxed;
  DriverError error_;
};

/// Stands around calls of the driver that may block. An enqueue blocks while its stream is full,
/// some thousand entries behind, and a call that needs the lock of the context blocks behind it. In
/// a Python process the GIL is given away meanwhile, as PyTorch does: a collective that has stalled
/// must leave the thread that could abort it able to run. Costs 30 to 50 ns.
class BlockingCall {
 public:
  /// How: `begin` gives what `end` gets back. Without, nothing is done.
  struct Hooks {
    void* (*begin)();
    void (*end)(void* state);
  };
  static inline Hooks hooks{};

  BlockingCall() : state_(hooks.begin != nullptr ? hooks.begin() : nullptr) {}
  ~BlockingCall() {
    if (state_ != nullptr) hooks.end(state_);
  }
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

 private:
  void* state_;
};

}  // namespace pig::cuda
