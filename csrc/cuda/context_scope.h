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

}  // namespace pig::cuda
