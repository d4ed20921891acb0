// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "hot/span.h"

namespace pig {

/// Takes the spans for which a thread's ring has no room. From any thread.
class SpanOverflow {
 public:
  virtual void fold(std::span<const RawSpan> spans) = 0;

 protected:
  ~SpanOverflow() = default;
};

}  // namespace pig
