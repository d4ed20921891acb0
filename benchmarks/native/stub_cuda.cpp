// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver whose calls succeed at once and do nothing. With it a benchmark measures our own
// part of a phase that is timed on a device: what is left when the driver's calls are taken away.
// It says nothing about what they cost, and no time that it gives is one of a device.
#include <cstring>
#include <type_traits>

#include "cuda/driver.h"

using namespace pig::cuda;  // NOLINT: the driver's names are global

#define STUB_EXPORT extern "C" __attribute__((visibility("default")))

namespace {
/// Any address but null will do for a handle.
template <typename Handle>
int hand_out(Handle* handle) {
  static char somewhere;
  *handle = reinterpret_cast<Handle>(&somewhere);
  return kSuccess;
}
}  // namespace

STUB_EXPORT int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
STUB_EXPORT int cuGetErrorName(int, const char** name) {
  *name = "CUDA_SUCCESS";
  return kSuccess;
}
STUB_EXPORT int cuGetErrorString(int, const char** text) {
  *text = "no error";
  return kSuccess;
}
STUB_EXPORT int cuCtxGetCurrent(Context* context) { return hand_out(context); }
STUB_EXPORT int cuCtxSetCurrent(Context) { return kSuccess; }
STUB_EXPORT int cuCtxGetDevice(Device* device) {
  *device = 0;
  return kSuccess;
}
STUB_EXPORT int cuCtxGetId(Context, uint64_t* id) {
  *id = 1;
  return kSuccess;
}
STUB_EXPORT int cuDevicePrimaryCtxGetState(Device, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}
STUB_EXPORT int cuDevicePrimaryCtxRetain(Context* context, Device) { return hand_out(context); }
STUB_EXPORT int cuDevicePrimaryCtxRelease(Device) { return kSuccess; }
STUB_EXPORT int cuStreamCreate(Stream* stream, unsigned) { return hand_out(stream); }
STUB_EXPORT int cuStreamIsCapturing(Stream, CaptureStatus* status) {
  *status = kNotCapturing;
  return kSuccess;
}
STUB_EXPORT int cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  *mode = kCaptureGlobal;
  return kSuccess;
}
STUB_EXPORT int cuEventCreate(Event* event, unsigned) { return hand_out(event); }
STUB_EXPORT int cuEventRecord(Event, Stream) { return kSuccess; }
STUB_EXPORT int cuEventQuery(Event) { return kSuccess; }
STUB_EXPORT int cuEventElapsedTime(float* milliseconds, Event, Event) {
  *milliseconds = 1.0f;
  return kSuccess;
}
STUB_EXPORT int cuEventElapsedTime_v2(float* milliseconds, Event begin, Event end) {
  return cuEventElapsedTime(milliseconds, begin, end);
}

#define STUB_SAME_TYPE(name, parameters) \
  static_assert(std::is_same_v<decltype(&cu##name), decltype(Driver::name)>);
PIG_CUDA_TIMING_FUNCTIONS(STUB_SAME_TYPE)
PIG_CUDA_LATER_FUNCTIONS(STUB_SAME_TYPE)

STUB_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t,
                                    int*) {
  *function = nullptr;
  if (version >= 12080 && std::strcmp(name, "cuEventElapsedTime") == 0) {
    *function = reinterpret_cast<void*>(&cuEventElapsedTime_v2);
    return kSuccess;
  }
#define STUB_FIND(known, parameters) \
  if (std::strcmp(name, "cu" #known) == 0) *function = reinterpret_cast<void*>(&cu##known);
  PIG_CUDA_TIMING_FUNCTIONS(STUB_FIND)
  constexpr int kNotFound = 500;
  return *function != nullptr ? kSuccess : kNotFound;
}
