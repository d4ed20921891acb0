// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver as a table of functions, found at run time.
//
// Nothing here links or includes CUDA: one build imports on a machine without a GPU and serves
// every driver from 12.0 on. The types and numbers declared here are those of the driver's stable
// ABI. The library is libcuda.so.1, or the one that PYINSTRUMENT_GPU_LIBCUDA names.
//
// Loading the library calls no function of it but cuGetProcAddress.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pig::cuda {

using Context = struct ContextHandle*;
using Stream = struct StreamHandle*;
using Event = struct EventHandle*;
using Library = struct LibraryHandle*;
using Kernel = struct KernelHandle*;
using Function = struct FunctionHandle*;  ///< a kernel as one context has it
using Graph = struct GraphHandle*;
using GraphNode = struct GraphNodeHandle*;
using Device = int;  ///< the ordinal among the visible ones
using DevicePointer = uint64_t;

/// The results that mean something to us. All others are errors like any other.
enum Result : int {
  kSuccess = 0,
  kDeinitialized = 4,  ///< the process is ending
  kInvalidContext = 201,
  kInvalidHandle = 400,  ///< of an event's record: its stream is of another context
  kNotReady = 600,
  kCaptureUnsupported = 900,  ///< the first of the capture codes
  kCapturedEvent = 907,       ///< the event was recorded in a capture
  kCaptureWrongThread = 908,  ///< the last
};

/// The codes that say a capture is under way (STREAM_CAPTURE_..., CAPTURED_EVENT).
constexpr bool is_capture_code(int result) {
  return result >= kCaptureUnsupported && result <= kCaptureWrongThread;
}

/// The codes that say "not now": of one event, and no reason to give up the device.
constexpr bool is_passing(int result) { return result == kNotReady || is_capture_code(result); }

enum CaptureMode : int { kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2 };
enum CaptureStatus : int { kNotCapturing = 0, kCapturing = 1, kCaptureInvalidated = 2 };

/// Whether it is the per-thread default stream, which is another one in each thread.
inline bool is_per_thread(Stream stream) { return stream == reinterpret_cast<Stream>(2); }

constexpr unsigned kStreamNonBlocking = 1;
constexpr unsigned kSetDependencies = 1;  ///< cuStreamUpdateCaptureDependencies
constexpr unsigned kEventDefault = 0;
constexpr unsigned kHostAllocPortable = 1;
constexpr unsigned kHostAllocMapped = 2;

// What device timing needs: name, parameters. All return a Result.
#define PIG_CUDA_TIMING_FUNCTIONS(F)                                         \
  F(DriverGetVersion, (int* version))                                        \
  F(GetErrorName, (int result, const char** name))                           \
  F(GetErrorString, (int result, const char** text))                         \
  F(CtxGetCurrent, (Context * context))                                      \
  F(CtxSetCurrent, (Context context))                                        \
  F(CtxGetDevice, (Device * device))                                         \
  F(CtxGetId, (Context context, uint64_t* id))                               \
  F(DevicePrimaryCtxGetState, (Device device, unsigned* flags, int* active)) \
  F(DevicePrimaryCtxRetain, (Context * context, Device device))              \
  F(DevicePrimaryCtxRelease, (Device device))                                \
  F(StreamCreate, (Stream * stream, unsigned flags))                         \
  F(StreamIsCapturing, (Stream stream, CaptureStatus * status))              \
  F(ThreadExchangeStreamCaptureMode, (CaptureMode * mode))                   \
  F(EventCreate, (Event * event, unsigned flags))                            \
  F(EventRecord, (Event event, Stream stream))                               \
  F(EventQuery, (Event event))                                               \
  F(EventElapsedTime, (float* milliseconds, Event begin, Event end))

// What drivers have from some version of CUDA on (cuda/driver.cpp). Null in the table before.
//
// cuEventElapsedTime_v2, of 12.8, does not find out whether the events are complete: on an H100
// that makes 70 ns of 2,600. It may not report the errors of earlier work.
#define PIG_CUDA_LATER_FUNCTIONS(F) \
  F(EventElapsedTime_v2, (float* milliseconds, Event begin, Event end))

// What launching kernels needs besides. Null in the table where the driver has them not.
#define PIG_CUDA_KERNEL_FUNCTIONS(F)                                                            \
  F(DeviceGetAttribute, (int* value, int attribute, Device device))                             \
  F(LibraryLoadData, (Library * library, const void* code, int* jit_options, void** jit_values, \
                      unsigned jit_count, int* options, void** values, unsigned count))         \
  F(LibraryGetKernel, (Kernel * kernel, Library library, const char* name))                     \
  F(LibraryUnload, (Library library))                                                           \
  F(KernelGetFunction, (Function * function, Kernel kernel))                                    \
  F(LaunchKernel, (Kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,            \
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                   Stream stream, void** parameters, void** extra))                             \
  F(MemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                               \
  F(MemHostGetDevicePointer, (DevicePointer * device_pointer, void* pointer, unsigned flags))   \
  F(MemFreeHost, (void* pointer))

// What marks in captured graphs need besides. Null in the table where the driver has it not.
#define PIG_CUDA_GRAPH_FUNCTIONS(F)                                                           \
  F(MemHostRegister, (void* memory, size_t bytes, unsigned flags))                            \
  F(StreamGetCaptureInfo, (Stream stream, CaptureStatus * status, uint64_t* id, Graph* graph, \
                           const GraphNode** dependencies, size_t* count))                    \
  F(StreamUpdateCaptureDependencies,                                                          \
    (Stream stream, const GraphNode* dependencies, size_t count, unsigned flags))

/// A driver call that failed, or none.
struct DriverError {
  const char* call = nullptr;
  int result = kSuccess;

  explicit operator bool() const { return result != kSuccess; }
};

struct Driver {
#define PIG_DECLARE(name, parameters) int(*name) parameters = nullptr;
  PIG_CUDA_TIMING_FUNCTIONS(PIG_DECLARE)
  PIG_CUDA_LATER_FUNCTIONS(PIG_DECLARE)
  PIG_CUDA_KERNEL_FUNCTIONS(PIG_DECLARE)
  PIG_CUDA_GRAPH_FUNCTIONS(PIG_DECLARE)
#undef PIG_DECLARE

  /// "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was encountered".
  std::string describe(int result) const;
};

/// The driver, loaded at the first call; nullptr when there is none that device timing could use.
/// To be called only once the program itself has initialised CUDA. Thread-safe.
const Driver* driver();

/// Whether something in this process has loaded the driver's library. Calls nothing in it.
bool driver_is_loaded();

const std::string& driver_error();

}  // namespace pig::cuda
