// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a device, for tests: the driver's own names, on a virtual clock that the
// test moves (simulated_control.h). It has what the project uses, and the calls that block, so that
// a test can see that nobody made them.
//
// Where the documentation leaves a rule open this driver is the stricter one: cuEventElapsedTime
// and the loading of a library count as unsafe during a capture, and an event is recorded only on a
// thread with a current context, which may be another one than that of the event and its stream.
#include <unistd.h>

#include <array>
#include <type_traits>

#include "simulated_driver.h"
#include "simulated_variants.h"

namespace sim {

SimulatedDriver& SimulatedDriver::instance() {
  static SimulatedDriver* const driver = new SimulatedDriver;  // leaked: threads outlive main
  return *driver;
}

Thread& SimulatedDriver::thread() {
  static uint64_t last_serial = 0;  // under the mutex, like everything here
  thread_local Thread thread;
  thread_local uint64_t thread_epoch = 0;
  if (thread_epoch != epoch_) {
    thread = Thread();
    thread.serial = ++last_serial;
    thread.system_id = static_cast<uint64_t>(gettid());
    thread_epoch = epoch_;
  }
  return thread;
}

void SimulatedDriver::reset(int devices) {
  Lock lock(*this);
  host.reset();
  machine.reset(devices);
  calls.reset();
  one_lock = false;
  stuck_limit_s = kStuckLimitS;
  ++epoch_;
  changed_.notify_all();
  blocked_changed_.wait(lock.mutex, [&] { return blocked_ == 0; });
}

bool SimulatedDriver::wait_until_blocked(uint64_t count, double timeout_s) {
  Lock lock(*this);
  return blocked_changed_.wait_for(lock.mutex, std::chrono::duration<double>(timeout_s),
                                   [&] { return blocked_ == count; });
}

namespace {

using pig::cuda::CaptureMode;
using pig::cuda::CaptureStatus;

template <typename T>
uint64_t word(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<uint64_t>(value);
  } else {
    return static_cast<uint64_t>(value);
  }
}

/// Runs `body`, which gives a handle as a number, and hands that out if it was successful.
template <typename Handle, typename Body>
Result hand_out(Handle* handle, Body body) {
  uint64_t number = 0;
  const Result result = body(&number);
  if (result == kSuccess) *handle = reinterpret_cast<Handle>(number);
  return result;
}

bool works_uninitialized(Function function) {
  return function == Function::kInit || function == Function::kDriverGetVersion ||
         function == Function::kGetErrorName || function == Function::kGetErrorString;
}

/// Whether a call waits while another one is stuck inside the driver. NVIDIA documents nothing of
/// its locks. In the stacks of processes that hang (PyTorch's issues 109074 and 119393, its pull
/// request 132520), calls as different as cudaEventDestroy and cudaHostUnregister stand behind a
/// stuck launch, so all wait here that could have to look at anything shared. Left are those that
/// read constants (names, the version) or what belongs to the calling thread alone (its current
/// context and its capture mode): a lock would have nothing to guard there.
bool takes_the_lock(Function function) {
  switch (function) {
    case Function::kGetErrorName:
    case Function::kGetErrorString:
    case Function::kDriverGetVersion:
    case Function::kCtxGetCurrent:
    case Function::kThreadExchangeStreamCaptureMode:
      return false;
    default:
      return true;
  }
}

/// What every call has in common: its cost, the failures ordered, the counts and the log. A call
/// that is made to fail does nothing else.
template <typename Body>
int call(Function function, const std::array<uint64_t, 4>& arguments, Body body) {
  SimulatedDriver& driver = SimulatedDriver::instance();
  const auto enter = [&]() -> int {
    driver.host.advance(driver.calls.cost_ns(function));
    const int result = driver.calls.ordered_failure(function);
    if (result != kSuccess) return result;
    const bool works = driver.machine.initialized || works_uninitialized(function);
    return works ? kSuccess : kNotInitialized;
  };
  const auto leave = [&](int result) {
    driver.calls.add(
        {function, result, driver.thread().system_id, driver.host.now_ns(), arguments});
  };
  return driver.call(
      takes_the_lock(function), enter,
      [&]() -> int { return body(driver.machine, driver.thread()); }, leave);
}

}  // namespace
}  // namespace sim

using namespace sim;  // NOLINT: the driver's names are global
using pig::cuda::DevicePointer;

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

SIM_EXPORT int cuInit(unsigned flags) {
  return call(Function::kInit, {word(flags)}, [](Machine& machine, Thread&) {
    machine.initialized = true;
    return kSuccess;
  });
}

SIM_EXPORT int cuDriverGetVersion(int* version) {
  return call(Function::kDriverGetVersion, {}, [&](Machine& machine, Thread&) {
    *version = machine.driver_version;
    return kSuccess;
  });
}

SIM_EXPORT int cuGetErrorName(int result, const char** name) {
  return call(Function::kGetErrorName, {word(result)}, [&](Machine&, Thread&) {
    *name = result_name(result);
    return *name != nullptr ? kSuccess : kInvalidValue;
  });
}

SIM_EXPORT int cuGetErrorString(int result, const char** text) {
  return call(Function::kGetErrorString, {word(result)}, [&](Machine&, Thread&) {
    *text = result_text(result);
    return *text != nullptr ? kSuccess : kInvalidValue;
  });
}

SIM_EXPORT int cuCtxGetCurrent(pig::cuda::Context* context) {
  return call(Function::kCtxGetCurrent, {}, [&](Machine& machine, Thread& thread) {
    return hand_out(context,
                    [&](uint64_t* number) { return machine.ctx_get_current(thread, number); });
  });
}

SIM_EXPORT int cuCtxSetCurrent(pig::cuda::Context context) {
  return call(Function::kCtxSetCurrent, {word(context)}, [&](Machine& machine, Thread& thread) {
    return machine.ctx_set_current(thread, word(context));
  });
}

SIM_EXPORT int cuCtxGetDevice(pig::cuda::Device* device) {
  return call(Function::kCtxGetDevice, {}, [&](Machine& machine, Thread& thread) {
    return machine.ctx_get_device(thread, device);
  });
}

SIM_EXPORT int cuDevicePrimaryCtxGetState(pig::cuda::Device device, unsigned* flags, int* active) {
  return call(Function::kDevicePrimaryCtxGetState, {word(device)}, [&](Machine& machine, Thread&) {
    return machine.primary_get_state(device, flags, active);
  });
}

SIM_EXPORT int cuDevicePrimaryCtxRetain(pig::cuda::Context* context, pig::cuda::Device device) {
  return call(Function::kDevicePrimaryCtxRetain, {word(device)}, [&](Machine& machine, Thread&) {
    return hand_out(context,
                    [&](uint64_t* number) { return machine.primary_retain(number, device); });
  });
}

SIM_EXPORT int cuDevicePrimaryCtxRelease(pig::cuda::Device device) {
  return call(Function::kDevicePrimaryCtxRelease, {word(device)},
              [&](Machine& machine, Thread&) { return machine.primary_release(device); });
}

SIM_EXPORT int cuStreamCreate(pig::cuda::Stream* stream, unsigned flags) {
  return call(Function::kStreamCreate, {word(flags)}, [&](Machine& machine, Thread& thread) {
    return hand_out(stream,
                    [&](uint64_t* number) { return machine.stream_create(thread, number, flags); });
  });
}

SIM_EXPORT int cuStreamIsCapturing(pig::cuda::Stream stream, CaptureStatus* status) {
  return call(Function::kStreamIsCapturing, {word(stream)}, [&](Machine& machine, Thread& thread) {
    return machine.stream_is_capturing(thread, word(stream), status);
  });
}

SIM_EXPORT int cuThreadExchangeStreamCaptureMode(CaptureMode* mode) {
  return call(Function::kThreadExchangeStreamCaptureMode, {word(*mode)},
              [&](Machine& machine, Thread& thread) {
                return machine.exchange_capture_mode(thread, mode);
              });
}

SIM_EXPORT int cuEventCreate(pig::cuda::Event* event, unsigned flags) {
  return call(Function::kEventCreate, {word(flags)}, [&](Machine& machine, Thread& thread) {
    return hand_out(event,
                    [&](uint64_t* number) { return machine.event_create(thread, number, flags); });
  });
}

SIM_EXPORT int cuEventRecord(pig::cuda::Event event, pig::cuda::Stream stream) {
  return call(Function::kEventRecord, {word(event), word(stream)},
              [&](Machine& machine, Thread& thread) {
                return machine.event_record(thread, word(event), word(stream));
              });
}

SIM_EXPORT int cuEventQuery(pig::cuda::Event event) {
  return call(Function::kEventQuery, {word(event)}, [&](Machine& machine, Thread& thread) {
    return machine.event_query(thread, word(event));
  });
}

SIM_EXPORT int cuEventElapsedTime(float* milliseconds, pig::cuda::Event begin,
                                  pig::cuda::Event end) {
  return call(Function::kEventElapsedTime, {word(begin), word(end)},
              [&](Machine& machine, Thread& thread) {
                return machine.event_elapsed(thread, milliseconds, word(begin), word(end));
              });
}

SIM_EXPORT int cuCtxSynchronize() {
  return call(Function::kCtxSynchronize, {},
              [](Machine& machine, Thread& thread) { return machine.ctx_synchronize(thread); });
}

SIM_EXPORT int cuStreamSynchronize(pig::cuda::Stream stream) {
  return call(Function::kStreamSynchronize, {word(stream)}, [&](Machine& machine, Thread& thread) {
    return machine.stream_synchronize(thread, word(stream));
  });
}

SIM_EXPORT int cuEventSynchronize(pig::cuda::Event event) {
  return call(Function::kEventSynchronize, {word(event)}, [&](Machine& machine, Thread& thread) {
    return machine.event_synchronize(thread, word(event));
  });
}

SIM_EXPORT int cuDeviceGetAttribute(int* value, int attribute, pig::cuda::Device device) {
  return call(Function::kDeviceGetAttribute, {word(attribute), word(device)},
              [&](Machine& machine, Thread&) {
                return machine.device_attribute(value, attribute, device);
              });
}

SIM_EXPORT int cuLibraryLoadData(pig::cuda::Library* library, const void* code, int*, void**,
                                 unsigned, int*, void**, unsigned) {
  return call(Function::kLibraryLoadData, {word(code)}, [&](Machine& machine, Thread& thread) {
    return hand_out(library,
                    [&](uint64_t* number) { return machine.library_load(thread, number, code); });
  });
}

SIM_EXPORT int cuLibraryGetKernel(pig::cuda::Kernel* kernel, pig::cuda::Library library,
                                  const char* name) {
  return call(Function::kLibraryGetKernel, {word(library)}, [&](Machine& machine, Thread&) {
    return hand_out(kernel, [&](uint64_t* number) {
      return machine.library_get_kernel(number, word(library), name);
    });
  });
}

SIM_EXPORT int cuLibraryUnload(pig::cuda::Library library) {
  return call(Function::kLibraryUnload, {word(library)}, [&](Machine& machine, Thread& thread) {
    return machine.library_unload(thread, word(library));
  });
}

SIM_EXPORT int cuKernelGetFunction(pig::cuda::Function* function, pig::cuda::Kernel kernel) {
  return call(Function::kKernelGetFunction, {word(kernel)}, [&](Machine& machine, Thread& thread) {
    return hand_out(function, [&](uint64_t* number) {
      return machine.kernel_get_function(thread, number, word(kernel));
    });
  });
}

SIM_EXPORT int cuLaunchKernel(pig::cuda::Kernel kernel, unsigned grid_x, unsigned grid_y,
                              unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned shared_bytes, pig::cuda::Stream stream, void** parameters,
                              void**) {
  const Launch launch{
      {}, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, word(stream), 0, 0};
  std::function<void()> run;
  const int result =
      call(Function::kLaunchKernel, {word(kernel), word(stream), word(grid_x), word(block_x)},
           [&](Machine& machine, Thread& thread) {
             return machine.launch_kernel(thread, word(kernel), launch, parameters, &run);
           });
  // Not under the mutex: it may be Python, which waits for its own lock.
  if (run) run();
  return result;
}

SIM_EXPORT int cuMemHostAlloc(void** pointer, size_t bytes, unsigned flags) {
  return call(Function::kMemHostAlloc, {word(bytes), word(flags)},
              [&](Machine& machine, Thread& thread) {
                return machine.host_alloc(thread, pointer, bytes, flags);
              });
}

SIM_EXPORT int cuMemHostGetDevicePointer(DevicePointer* device_pointer, void* pointer,
                                         unsigned flags) {
  return call(Function::kMemHostGetDevicePointer, {word(pointer), word(flags)},
              [&](Machine& machine, Thread& thread) {
                return machine.host_device_pointer(thread, device_pointer, pointer);
              });
}

SIM_EXPORT int cuMemFreeHost(void* pointer) {
  return call(Function::kMemFreeHost, {word(pointer)},
              [&](Machine& machine, Thread& thread) { return machine.host_free(thread, pointer); });
}

// A signature that differs from the table's would be called with the wrong registers.
#define SIM_SAME_TYPE(name, parameters) \
  static_assert(std::is_same_v<decltype(&cu##name), decltype(pig::cuda::Driver::name)>);
PIG_CUDA_TIMING_FUNCTIONS(SIM_SAME_TYPE)
PIG_CUDA_KERNEL_FUNCTIONS(SIM_SAME_TYPE)

#define SIM_HAS_VARIANT(name, parameters) \
  static_assert(has_our_variant("cu" #name), "simulated_variants.h: since which version?");
SIM_FUNCTIONS(SIM_HAS_VARIANT)

namespace {

/// Stands in for a variant that is not ours, whatever it is called with.
template <size_t i>
int other_variant() {
  SimulatedDriver& driver = SimulatedDriver::instance();
  driver.locked([&] {
    driver.machine.add_violation(
        std::string(kVariants[i].function) + " was called as the variant of " +
        std::to_string(kVariants[i].version) + ", which differs from the one that is declared");
  });
  return kInvalidValue;
}

template <size_t... i>
auto other_variants(std::index_sequence<i...>) {
  return std::array{reinterpret_cast<void*>(&other_variant<i>)...};
}

enum QueryStatus : int { kFound = 0, kSymbolNotFound = 1, kVersionNotSufficient = 2 };

}  // namespace

/// Not among the calls that fail, cost time or are counted: the loader makes it, once a process.
/// That a symbol is not there is no error: the address is null.
SIM_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t,
                                   int* status) {
  static void* const ours[] = {
#define SIM_ADDRESS(name, parameters) reinterpret_cast<void*>(&cu##name),
      SIM_FUNCTIONS(SIM_ADDRESS)
#undef SIM_ADDRESS
  };
  static const auto others = other_variants(std::make_index_sequence<kVariants.size()>());
  SimulatedDriver& driver = SimulatedDriver::instance();
  if (version > driver.locked([&] { return driver.machine.driver_version; })) return kInvalidValue;
  *function = nullptr;
  QueryStatus found = kSymbolNotFound;
  for (size_t i = 0; i < kVariants.size(); ++i) {
    const Variant& variant = kVariants[i];
    if (!same_name(variant.function, name)) continue;
    if (variant.version <= version) {
      *function = variant.is_ours ? ours[function_index(name)] : others[i];
      found = kFound;
    } else if (found == kSymbolNotFound) {
      found = kVersionNotSufficient;
    }
  }
  if (status != nullptr) *status = found;
  return kSuccess;
}
