// SPDX-License-Identifier: Apache-2.0
//
// NVRTC, the compiler of CUDA as a library, found at run time like the driver.
//
// Nothing here links or includes it. The library is the one that PYINSTRUMENT_GPU_LIBNVRTC names,
// or the one that the process has loaded, or that of PyTorch's own packages, or the system's.
#pragma once

#include <string>
#include <vector>

namespace pig::cuda {

/// A text that the compiler reads: a source, or a header by the name that #include has.
struct SourceText {
  const char* name;
  const char* text;
};

/// What came of a compilation: code that cuLibraryLoadData takes, or why there is none.
struct CompiledCode {
  std::string code;
  std::string error;
};

/// Where else to look for the library, best first. To be called before the first compilation.
void set_nvrtc_paths(std::vector<std::string> paths);

/// Compiles a source for devices of a compute capability: to machine code, or where this NVRTC is
/// older than the device, to PTX, which the driver compiles. Takes seconds; needs no device and
/// calls no driver. Thread-safe.
CompiledCode compile_by_nvrtc(const SourceText& source, const std::vector<SourceText>& headers,
                              int major, int minor);

}  // namespace pig::cuda
