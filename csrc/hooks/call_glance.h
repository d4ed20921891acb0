// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "hooks/tensor_glance.h"

namespace pig {

/// How to tell at a glance, by its arguments, that a call of torch touches no device. Python has
/// the names (`_C.pyi`).
enum class CallGlance : int {
  never = 0,      ///< it can't be told
  first = 1,      ///< its first argument is a tensor of the host
  only = 2,       ///< as `first`, or there are other arguments (`torch.where`)
  arguments = 3,  ///< all are tensors of the host or plain numbers
  to = 4,         ///< a tensor of the host, and a dtype or the CPU (`Tensor.to`)
};
constexpr int kCallGlances = 5;

/// False says nothing. `self` and the other positional arguments.
bool stays_on_host(CallGlance glance, PyObject* self, PyObject* const* others, Py_ssize_t count,
                   bool has_keywords);

}  // namespace pig
