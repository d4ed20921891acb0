// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace pig {

/// What vector code is compiled for, from the least to the best. On other architectures than x86-64
/// there is the baseline only, which has their vectors.
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };

inline InstructionSet best_of_machine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has_avx2) return has_avx512 ? InstructionSet::kAvx512 : InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

/// The best that the environment allows.
inline InstructionSet best_allowed() {
  const char* const name = std::getenv("PYINSTRUMENT_GPU_INSTRUCTION_SET");
  if (name != nullptr && std::strcmp(name, "baseline") == 0) return InstructionSet::kBaseline;
  if (name != nullptr && std::strcmp(name, "avx2") == 0) return InstructionSet::kAvx2;
  return InstructionSet::kAvx512;
}

/// The best that this machine has: AVX2 with FMA, or AVX-512 with F, BW, DQ and VL. A lesser one
/// that the environment variable PYINSTRUMENT_GPU_INSTRUCTION_SET names (`baseline` or `avx2`) is
/// taken instead, so that tests run what other machines run. Read once.
inline InstructionSet instruction_set() {
  static const InstructionSet set = std::min(best_of_machine(), best_allowed());
  return set;
}

}  // namespace pig
