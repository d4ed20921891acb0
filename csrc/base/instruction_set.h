// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <cstring>

namespace pig {

/// What vector code is compiled for, from the least to the best. On other architectures than x86-64
/// there is the baseline only, which has their vectors.
enum class InstructionSet { kBaseline, kAvx2 };

inline InstructionSet best_of_machine() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kBaseline;
}

/// The best that this machine has; AVX2 means with FMA. The baseline is taken instead where the
/// environment variable PYINSTRUMENT_GPU_INSTRUCTION_SET is `baseline`, so that tests run what
/// other machines run. Read once.
inline InstructionSet instruction_set() {
  static const InstructionSet set = [] {
    const char* const name = std::getenv("PYINSTRUMENT_GPU_INSTRUCTION_SET");
    const bool is_lesser = name != nullptr && std::strcmp(name, "baseline") == 0;
    return is_lesser ? InstructionSet::kBaseline : best_of_machine();
  }();
  return set;
}

}  // namespace pig
