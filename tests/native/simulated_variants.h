// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions by the version of CUDA in which each of their variants appeared, which is
// what the `version` argument of cuGetProcAddress chooses by. The versions are those of the types
// in cudaTypedefs.h (PFN_cuEventElapsedTime_v2000); of the newest ones, those by which NVIDIA's
// cuda-python asks for them.
//
// `is_ours` is the one variant of each function that cuda/driver.h declares. The others have
// another signature, such as cuCtxGetDevice_v2(device, context), or behave differently, such as
// cuEventElapsedTime_v2, which does not report the errors of earlier work. Whoever calls one by our
// declaration has asked for the wrong version.
#pragma once

#include <array>
#include <string_view>

namespace sim {

struct Variant {
  const char* function;
  int version;
  bool is_ours;
};

/// A function's variants stand together, the oldest first.
constexpr std::array kVariants = {
    Variant{"cuInit", 2000, true},
    Variant{"cuDriverGetVersion", 2020, true},
    Variant{"cuGetErrorName", 6000, true},
    Variant{"cuGetErrorString", 6000, true},
    Variant{"cuCtxGetCurrent", 4000, true},
    Variant{"cuCtxSetCurrent", 4000, true},
    Variant{"cuCtxGetDevice", 2000, true},
    Variant{"cuCtxGetDevice", 13000, false},
    Variant{"cuDevicePrimaryCtxGetState", 7000, true},
    Variant{"cuDevicePrimaryCtxRetain", 7000, true},
    Variant{"cuDevicePrimaryCtxRelease", 7000, false},
    Variant{"cuDevicePrimaryCtxRelease", 11000, true},
    Variant{"cuStreamCreate", 2000, true},
    Variant{"cuStreamIsCapturing", 10000, true},
    Variant{"cuThreadExchangeStreamCaptureMode", 10010, true},
    Variant{"cuEventCreate", 2000, true},
    Variant{"cuEventRecord", 2000, true},
    Variant{"cuEventQuery", 2000, true},
    Variant{"cuEventElapsedTime", 2000, true},
    Variant{"cuEventElapsedTime", 12080, false},
    Variant{"cuCtxSynchronize", 2000, true},
    Variant{"cuCtxSynchronize", 13000, false},
    Variant{"cuStreamSynchronize", 2000, true},
    Variant{"cuEventSynchronize", 2000, true},
    Variant{"cuDeviceGetAttribute", 2000, true},
    Variant{"cuLibraryLoadData", 12000, true},
    Variant{"cuLibraryGetKernel", 12000, true},
    Variant{"cuLibraryUnload", 12000, true},
    Variant{"cuKernelGetFunction", 12000, true},
    Variant{"cuLaunchKernel", 4000, true},
    Variant{"cuMemHostAlloc", 2020, true},
    Variant{"cuMemHostGetDevicePointer", 2020, false},
    Variant{"cuMemHostGetDevicePointer", 3020, true},
    Variant{"cuMemFreeHost", 2000, true},
};

constexpr bool has_our_variant(std::string_view function) {
  for (const Variant& variant : kVariants)
    if (variant.is_ours && variant.function == function) return true;
  return false;
}

}  // namespace sim
