// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/driver.h"

namespace pig::cuda {

/// A driver call that failed, or none.
struct DriverError {
  const char* call = nullptr;
  int result = kSuccess;

  explicit operator bool() const { return result != kSuccess; }
};

}  // namespace pig::cuda
