// SPDX-License-Identifier: Apache-2.0
//
// The driver's functions by the version of CUDA in which each of their variants appeared, which is
// what the `version` argument of cuGetProcAddress chooses by. The versions are those of the types
// in cudaTypedefs.h (PFN_cuEventElapsedTime_v2000); of the newest ones, those by which NVIDIA's
// cuda-python asks for them.
//
// `ours` is the function of cuda/driver.h that declares the variant. The others have another
// signature, such as cuCtxGetDevice_v2(device, context). Whoever calls one by our declaration has
// asked for the wrong version.
#pragma once

#include <array>
#include <string_view>

namespace sim {

struct Variant {
  const char* function;
  int version;
  const char* ours;  ///< null: none
};

/// A function's variants stand together, the oldest first.
constexpr std::array kVariants = {
    Variant{"cuInit", 2000, "cuInit"},
    Variant{"cuDriverGetVersion", 2020, "cuDriverGetVersion"},
    Variant{"cuGetErrorName", 6000, "cuGetErrorName"},
    Variant{"cuGetErrorString", 6000, "cuGetErrorString"},
    Variant{"cuCtxGetCurrent", 4000, "cuCtxGetCurrent"},
    Variant{"cuCtxSetCurrent", 4000, "cuCtxSetCurrent"},
    Variant{"cuCtxGetDevice", 2000, "cuCtxGetDevice"},
    Variant{"cuCtxGetDevice", 13000, nullptr},
    Variant{"cuCtxGetId", 12000, "cuCtxGetId"},
    Variant{"cuDevicePrimaryCtxGetState", 7000, "cuDevicePrimaryCtxGetState"},
    Variant{"cuDevicePrimaryCtxRetain", 7000, "cuDevicePrimaryCtxRetain"},
    Variant{"cuDevicePrimaryCtxRelease", 7000, nullptr},
    Variant{"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease"},
    Variant{"cuStreamCreate", 2000, "cuStreamCreate"},
    Variant{"cuStreamIsCapturing", 10000, "cuStreamIsCapturing"},
    Variant{"cuStreamGetCaptureInfo", 10010, nullptr},
    Variant{"cuStreamGetCaptureInfo", 11030, "cuStreamGetCaptureInfo"},
    Variant{"cuStreamGetCaptureInfo", 12030, nullptr},
    Variant{"cuStreamUpdateCaptureDependencies", 11030, "cuStreamUpdateCaptureDependencies"},
    Variant{"cuStreamUpdateCaptureDependencies", 12030, nullptr},
    Variant{"cuThreadExchangeStreamCaptureMode", 10010, "cuThreadExchangeStreamCaptureMode"},
    Variant{"cuEventCreate", 2000, "cuEventCreate"},
    Variant{"cuEventRecord", 2000, "cuEventRecord"},
    Variant{"cuEventQuery", 2000, "cuEventQuery"},
    Variant{"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    Variant{"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"},
    Variant{"cuCtxSynchronize", 2000, "cuCtxSynchronize"},
    Variant{"cuCtxSynchronize", 13000, nullptr},
    Variant{"cuStreamSynchronize", 2000, "cuStreamSynchronize"},
    Variant{"cuEventSynchronize", 2000, "cuEventSynchronize"},
    Variant{"cuDeviceGetAttribute", 2000, "cuDeviceGetAttribute"},
    Variant{"cuLibraryLoadData", 12000, "cuLibraryLoadData"},
    Variant{"cuLibraryGetKernel", 12000, "cuLibraryGetKernel"},
    Variant{"cuLibraryUnload", 12000, "cuLibraryUnload"},
    Variant{"cuKernelGetFunction", 12000, "cuKernelGetFunction"},
    Variant{"cuLaunchKernel", 4000, "cuLaunchKernel"},
    Variant{"cuMemHostAlloc", 2020, "cuMemHostAlloc"},
    Variant{"cuMemHostGetDevicePointer", 2020, nullptr},
    Variant{"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer"},
    Variant{"cuMemHostRegister", 4000, nullptr},
    Variant{"cuMemHostRegister", 6050, "cuMemHostRegister"},
    Variant{"cuMemFreeHost", 2000, "cuMemFreeHost"},
};

constexpr bool has_our_variant(std::string_view function) {
  for (const Variant& variant : kVariants)
    if (variant.ours != nullptr && variant.ours == function) return true;
  return false;
}

}  // namespace sim
