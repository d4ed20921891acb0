// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace sim {

/// What the simulated driver answers: the driver's numbers and names, and our words for them.
#define SIM_RESULTS(R)                                                                           \
  R(Success, 0, "CUDA_SUCCESS", "no error")                                                      \
  R(InvalidValue, 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument")                             \
  R(OutOfMemory, 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory")                                 \
  R(NotInitialized, 3, "CUDA_ERROR_NOT_INITIALIZED", "no driver in this process")                \
  R(Deinitialized, 4, "CUDA_ERROR_DEINITIALIZED", "the driver is shutting down")                 \
  R(NoDevice, 100, "CUDA_ERROR_NO_DEVICE", "no device")                                          \
  R(InvalidDevice, 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal")                   \
  R(InvalidImage, 200, "CUDA_ERROR_INVALID_IMAGE", "invalid kernel image")                       \
  R(InvalidContext, 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid context")                        \
  R(NoBinary, 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image for this device")            \
  R(UnsupportedPtx, 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "PTX of a newer tool")            \
  R(LossyQuery, 394, "CUDA_ERROR_LOSSY_QUERY", "there is edge data that was not asked for")      \
  R(InvalidHandle, 400, "CUDA_ERROR_INVALID_HANDLE", "invalid handle")                           \
  R(NotFound, 500, "CUDA_ERROR_NOT_FOUND", "no such name")                                       \
  R(NotReady, 600, "CUDA_ERROR_NOT_READY", "not finished yet")                                   \
  R(IllegalAddress, 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "illegal memory access")                  \
  R(LaunchTimeout, 702, "CUDA_ERROR_LAUNCH_TIMEOUT", "a kernel does not end")                    \
  R(ContextIsDestroyed, 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed")          \
  R(LaunchFailed, 719, "CUDA_ERROR_LAUNCH_FAILED", "a kernel failed")                            \
  R(CaptureUnsupported, 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",                            \
    "not permitted while a stream is capturing")                                                 \
  R(CaptureInvalidated, 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",                            \
    "the capture was invalidated by an earlier error")                                           \
  R(CaptureMerge, 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures may not be merged")      \
  R(CaptureUnmatched, 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED",                                \
    "the capture did not begin on this stream")                                                  \
  R(CaptureUnjoined, 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED",                                  \
    "the capture has a fork that was not joined to its origin")                                  \
  R(CaptureIsolation, 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION",                                \
    "a capture may not depend on work outside of it")                                            \
  R(CaptureImplicit, 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",                                  \
    "the legacy stream would depend on a capture")                                               \
  R(CapturedEvent, 907, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capture") \
  R(CaptureWrongThread, 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",                           \
    "the capture began on another thread")

#define SIM_DECLARE(name, number, driver_name, text) k##name = number,
enum Result : int { SIM_RESULTS(SIM_DECLARE) };
#undef SIM_DECLARE

/// Not a result of the driver's: the stream is full, and the call has done nothing yet.
constexpr Result kStreamFull = static_cast<Result>(-1);

/// Null for a number that is not in the table.
inline const char* result_name(int result) {
  switch (result) {
#define SIM_CASE(name, number, driver_name, text) \
  case number:                                    \
    return driver_name;
    SIM_RESULTS(SIM_CASE)
#undef SIM_CASE
  }
  return nullptr;
}

inline const char* result_text(int result) {
  switch (result) {
#define SIM_CASE(name, number, driver_name, text) \
  case number:                                    \
    return text;
    SIM_RESULTS(SIM_CASE)
#undef SIM_CASE
  }
  return nullptr;
}

}  // namespace sim
