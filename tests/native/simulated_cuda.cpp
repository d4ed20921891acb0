// SPDX-License-Identifier: Apache-2.0
//
// A CUDA driver without a device, for tests: the functions of the driver's own names, which
// cuGetProcAddress_v2 finds, on a virtual clock that the test moves (simulated_control.h). It has
// what the project uses, and the calls that block, so that a test can see that nobody made them.
//
// Where the documentation leaves a rule open this driver is the stricter one: cuEventElapsedTime
// and the loading of a library count as unsafe during a capture, and an event is recorded only on a
// thread with a current context, which may be another one than that of the event and its stream.
#include <unistd.h>

#include <array>
#include <string_view>
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
  process_ = getpid();
  host.reset();
  machine.reset(devices);
  calls.reset();
  driver_lock = DriverLock::kNone;
  stuck_limit_s = kStuckLimitS;
  ++epoch_;
  changed_.notify_all();
  blocked_changed_.wait(lock.mutex, [&] { return blocked_ == 0; });
}

bool SimulatedDriver::wait_until_blocked(uint64_t least, uint64_t most, double timeout_s) {
  Lock lock(*this);
  return blocked_changed_.wait_for(lock.mutex, std::chrono::duration<double>(timeout_s),
                                   [&] { return blocked_ >= least && blocked_ <= most; });
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
  if (driver.is_forked()) return kNotInitialized;
  const auto enter = [&]() -> int {
    driver.host.advance(driver.calls.cost_ns(function));
    return driver.calls.ordered_failure(function);
  };
  const auto leave = [&](int result) {
    driver.calls.add(
        {function, result, driver.thread().system_id, driver.host.now_ns(), arguments});
  };
  return driver.call(
      takes_the_lock(function), enter,
      [&]() -> int { return body(driver.machine, driver.thread()); }, leave);
}

template <typename T>
constexpr bool is_handle = std::is_pointer_v<T> && std::is_class_v<std::remove_pointer_t<T>>;

/// What a call is given, for the log: not where its answer goes.
template <typename... Parameters>
std::array<uint64_t, 4> words(Parameters... parameters) {
  std::array<uint64_t, 4> words{};
  [[maybe_unused]] size_t count = 0;
  [[maybe_unused]] const auto add = [&](auto parameter) {
    using T = decltype(parameter);
    if constexpr (std::is_integral_v<T> || is_handle<T> || std::is_same_v<T, void*>)
      if (count < words.size()) words[count++] = word(parameter);
  };
  (add(parameters), ...);
  return words;
}

/// Where the machine puts the number of a handle. A call that fails hands none out.
template <typename Handle>
class HandedOut {
 public:
  explicit HandedOut(Handle* handle) : handle_(handle) {}
  HandedOut(const HandedOut&) = delete;
  HandedOut& operator=(const HandedOut&) = delete;
  ~HandedOut() {
    if (number_ != kNone) *handle_ = reinterpret_cast<Handle>(number_);
  }
  operator uint64_t*() { return &number_; }

 private:
  static constexpr uint64_t kNone = ~uint64_t{0};
  Handle* handle_;
  uint64_t number_ = kNone;
};

/// A parameter of the driver's as the machine takes it: there handles are numbers.
template <typename T>
auto for_machine(T parameter) {
  if constexpr (is_handle<T>) {
    return word(parameter);
  } else if constexpr (std::is_pointer_v<T> && is_handle<std::remove_pointer_t<T>> &&
                       !std::is_const_v<std::remove_pointer_t<T>>) {
    return HandedOut(parameter);
  } else {
    return parameter;
  }
}

/// A function of the driver that hands all it is given to a member of the machine.
template <Function function, auto member, typename Signature>
struct Forward;
template <Function function, auto member, typename... Parameters>
struct Forward<function, member, int(Parameters...)> {
  static int run(Parameters... parameters) {
    return call(function, words(parameters...), [&](Machine& machine, Thread& thread) {
      return (machine.*member)(thread, for_machine(parameters)...);
    });
  }
};

}  // namespace
}  // namespace sim

namespace pig::cuda::signatures {
#define SIM_SIGNATURE(name, parameters) using name = int parameters;
SIM_FUNCTIONS(SIM_SIGNATURE)
#undef SIM_SIGNATURE
}  // namespace pig::cuda::signatures

namespace sim {
namespace {

#define SIM_FORWARD(name, member) \
  constexpr auto* cu##name =      \
      &Forward<Function::k##name, &Machine::member, pig::cuda::signatures::name>::run;
SIM_FORWARD(CtxGetCurrent, ctx_get_current)
SIM_FORWARD(CtxSetCurrent, ctx_set_current)
SIM_FORWARD(CtxGetDevice, ctx_get_device)
SIM_FORWARD(CtxGetId, ctx_get_id)
SIM_FORWARD(DevicePrimaryCtxGetState, primary_get_state)
SIM_FORWARD(DevicePrimaryCtxRetain, primary_retain)
SIM_FORWARD(DevicePrimaryCtxRelease, primary_release)
SIM_FORWARD(StreamCreate, stream_create)
SIM_FORWARD(StreamIsCapturing, stream_is_capturing)
SIM_FORWARD(StreamGetCaptureInfo, stream_get_capture_info)
SIM_FORWARD(StreamUpdateCaptureDependencies, stream_update_dependencies)
SIM_FORWARD(ThreadExchangeStreamCaptureMode, exchange_capture_mode)
SIM_FORWARD(EventCreate, event_create)
SIM_FORWARD(EventRecord, event_record)
SIM_FORWARD(EventQuery, event_query)
SIM_FORWARD(EventElapsedTime, event_elapsed)
SIM_FORWARD(EventElapsedTime_v2, event_elapsed_v2)
SIM_FORWARD(CtxSynchronize, ctx_synchronize)
SIM_FORWARD(StreamSynchronize, stream_synchronize)
SIM_FORWARD(EventSynchronize, event_synchronize)
SIM_FORWARD(DeviceGetAttribute, device_attribute)
SIM_FORWARD(LibraryGetKernel, library_get_kernel)
SIM_FORWARD(LibraryUnload, library_unload)
SIM_FORWARD(KernelGetFunction, kernel_get_function)
SIM_FORWARD(MemHostAlloc, host_alloc)
SIM_FORWARD(MemHostGetDevicePointer, host_device_pointer)
SIM_FORWARD(MemHostRegister, host_register)
SIM_FORWARD(MemFreeHost, host_free)
#undef SIM_FORWARD

int cuInit(unsigned flags) {
  return call(Function::kInit, {word(flags)}, [](Machine&, Thread&) { return kSuccess; });
}

int cuDriverGetVersion(int* version) {
  return call(Function::kDriverGetVersion, {}, [&](Machine& machine, Thread&) {
    *version = machine.driver_version;
    return kSuccess;
  });
}

int cuGetErrorName(int result, const char** name) {
  return call(Function::kGetErrorName, {word(result)}, [&](Machine&, Thread&) {
    *name = result_name(result);
    return *name != nullptr ? kSuccess : kInvalidValue;
  });
}

int cuGetErrorString(int result, const char** text) {
  return call(Function::kGetErrorString, {word(result)}, [&](Machine&, Thread&) {
    *text = result_text(result);
    return *text != nullptr ? kSuccess : kInvalidValue;
  });
}

int cuLibraryLoadData(pig::cuda::Library* library, const void* code, int*, void**, unsigned, int*,
                      void**, unsigned) {
  return call(Function::kLibraryLoadData, {word(code)}, [&](Machine& machine, Thread& thread) {
    return machine.library_load(thread, for_machine(library), code);
  });
}

int cuLaunchKernel(pig::cuda::Kernel kernel, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   pig::cuda::Stream stream, void** parameters, void**) {
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

// A signature that differs from the table's would be called with the wrong registers.
#define SIM_SAME_TYPE(name, parameters) \
  static_assert(std::is_same_v<std::decay_t<decltype(cu##name)>, pig::cuda::signatures::name*>);
SIM_FUNCTIONS(SIM_SAME_TYPE)
#undef SIM_SAME_TYPE

#define SIM_HAS_VARIANT(name, parameters) \
  static_assert(has_our_variant("cu" #name), "simulated_variants.h: since which version?");
SIM_FUNCTIONS(SIM_HAS_VARIANT)
#undef SIM_HAS_VARIANT

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
extern "C" __attribute__((visibility("default"))) int cuGetProcAddress_v2(const char* name,
                                                                          void** function,
                                                                          int version, uint64_t,
                                                                          int* status) {
  static void* const ours[] = {
#define SIM_ADDRESS(name, parameters) reinterpret_cast<void*>(cu##name),
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
    if (variant.function != std::string_view(name)) continue;
    if (variant.version <= version) {
      *function = variant.ours != nullptr ? ours[function_index(variant.ours)] : others[i];
      found = kFound;
    } else if (found == kSymbolNotFound) {
      found = kVersionNotSufficient;
    }
  }
  if (status != nullptr) *status = found;
  return kSuccess;
}

}  // namespace sim
