// SPDX-License-Identifier: Apache-2.0
//
// The kernels as they lie in this module: compiled, and as text. kernel_image.S embeds them.
#pragma once

#include <string_view>

#include "cuda/nvrtc.h"

namespace pig::metrics {

/// For all architectures, as nvcc compiled them; empty where the build found none.
std::string_view kernel_image();

/// The same by NVRTC, from the text, for one compute capability.
cuda::CompiledCode compile_kernels(int major, int minor);

}  // namespace pig::metrics
