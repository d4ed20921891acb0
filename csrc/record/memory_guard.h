// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/throwing.h"
#include "record/recording_thread.h"

namespace pig {

/// What a function returns that may allocate. Where there is no memory for it, that is counted, and
/// the result is `otherwise`.
template <typename Result, typename Function>
Result with_memory(Result otherwise, Function function) {
  Result result = otherwise;
  if (!try_allocating([&] { result = function(); })) count_drop(Drop::kNoMemory);
  return result;
}

}  // namespace pig
