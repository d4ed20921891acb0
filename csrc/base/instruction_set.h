// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pig {

/// What vector code is compiled for, from the least to the best. On other architectures than x86-64
/// there is the baseline only, which has their vectors.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

/// The best that this machine has: AVX2 with FMA, or AVX-512 with F, BW, DQ and VL. A lesser one
/// that the environment variable PYINSTRUMENT_GPU_INSTRUCTION_SET names (`baseline` or `avx2`) is
/// taken instead, so that tests run what other machines run. Read once.
InstructionSet instruction_set();

}  // namespace pig
