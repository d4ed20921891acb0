// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include "cuda/device_timing.h"

namespace pig {

/// How to ask PyTorch for the calling thread's current CUDA stream: through the DLPack exchange API
/// in the capsule torch.Tensor.__dlpack_c_exchange_api__, or, given None (torch before 2.10), a
/// function that libtorch_cuda.so exports; null when there is no such way. And for its current
/// device: a function that libtorch_cpu.so exports, which never makes a context.
cuda::TorchFunctions torch_functions(PyObject* capsule);

}  // namespace pig
