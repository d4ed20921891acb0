// SPDX-License-Identifier: Apache-2.0
//
// What a test does with the simulated driver, exported from its library under names of its own.
//
// Handles are the driver's, as numbers: a stream is also 0 or 1 (legacy) or 2 (the calling
// thread's own) of the current context. What returns `int` returns a driver's result. A function's
// name may be "*" for all.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <string>

namespace sim {

/// One call of the driver.
struct CallView {
  const char* function;
  int result;
  uint64_t thread;
  int64_t host_ns;
  uint64_t arguments[4];
};

/// One event record outside a capture, and the truth about it. The last three hold once it is done.
struct RecordView {
  uint64_t event;
  uint64_t stream;
  uint64_t thread;
  int64_t host_ns;  ///< of the call
  int device;
  int done;
  int64_t device_ns;     ///< when it took place, on the device's clock
  int64_t stamp_ns;      ///< what the device wrote down: the same, rounded down to its tick
  int64_t done_host_ns;  ///< when it took place, on the host's clock
};

struct LaunchView {
  const char* kernel;
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  uint64_t stream;
  uint64_t thread;
  int64_t host_ns;
};

#define SIM_CONTROLS(F)                                                                            \
  /* All as new: devices without contexts, host time 0, nothing logged, no failures. */            \
  F(void, reset, (int devices))                                                                    \
  F(void, set_driver_version, (int version))                                                       \
  F(void, set_elapsed_polls, (int polls))                                                          \
  /* The clock. `host_ns` is for the code under test: it pays for the reading. */                  \
  F(uint64_t, host_ns, ())                                                                         \
  F(uint64_t, now_ns, ())                                                                          \
  F(void, advance, (int64_t ns))                                                                   \
  F(void, set_reading_costs, (int64_t ns))                                                         \
  F(int, next_host_ns, (int64_t* host_ns))                                                         \
  F(void, run_dry, ())                                                                             \
  /* Devices. */                                                                                   \
  F(int, set_device_clock, (int device, int64_t offset_ns, int64_t drift_ppb))                     \
  F(int, set_tick, (int device, int64_t tick_ns))                                                  \
  /* What a kernel reads as %globaltimer. */                                                       \
  F(int, set_timer, (int device, int64_t offset_ns, int64_t step_ns))                              \
  F(int, set_elapsed_resolution, (int device, int64_t resolution_ns))                              \
  F(int, set_record_latency, (int device, int64_t min_ns, int64_t max_ns, uint64_t seed))          \
  /* How many entries fit into a stream; 0 is any number. */                                       \
  F(int, set_record_duration, (int device, int64_t ns))                                            \
  F(int, set_queue_depth, (int device, uint64_t entries))                                          \
  /* How many queues the streams share, by turns as created; 0 is one for each stream. */          \
  F(int, set_hardware_queues, (int device, uint64_t count))                                        \
  F(int, set_attribute, (int device, int attribute, int value))                                    \
  F(int, device_ns, (int device, int64_t* device_ns))                                              \
  /* Contexts. */                                                                                  \
  F(int, activate, (int device, uint64_t* context))                                                \
  F(int, deactivate, (int device))                                                                 \
  F(int, create_context, (int device, uint64_t* context))                                          \
  F(int, poison, (uint64_t context, int result))                                                   \
  F(int, make_current, (uint64_t context))                                                         \
  F(uint64_t, current_context, ())                                                                 \
  F(int64_t, retained, (int device))                                                               \
  /* Streams and captures. What enqueues is stuck while its stream is full. */                     \
  F(int, create_stream, (uint64_t context, unsigned flags, uint64_t* stream))                      \
  F(int, destroy_stream, (uint64_t stream))                                                        \
  F(int, destroy_event, (uint64_t event))                                                          \
  F(void, reuse_handles, (int reuse))                                                              \
  F(int, launch, (uint64_t stream, int64_t duration_ns))                                           \
  F(int, hang, (uint64_t stream))                                                                  \
  F(int, release, (uint64_t stream))                                                               \
  F(int, wait_event, (uint64_t stream, uint64_t event))                                            \
  F(int, pending, (uint64_t stream, uint64_t* count))                                              \
  F(int, begin_capture, (uint64_t stream, int mode))                                               \
  F(int, end_capture, (uint64_t stream, uint64_t* graph))                                          \
  F(int, begin_next_early, (uint64_t stream))                                                      \
  F(int, capture_status, (uint64_t stream, int* status))                                           \
  F(int, graph_entries, (uint64_t graph, uint64_t* entries))                                       \
  F(int, launch_graph, (uint64_t graph, uint64_t stream))                                          \
  F(int, memset, (uint64_t stream, uint64_t address, uint64_t bytes, int value))                   \
  F(int, allocate, (uint64_t stream, uint64_t address, uint64_t bytes))                            \
  F(uint64_t, captures_invalidated, ())                                                            \
  /* Calls that are stuck. `wait_until_blocked` waits for their number; 0: not in time. */         \
  /* 0: none, 1: one, 2: one for each device. */                                                   \
  F(void, set_driver_lock, (int lock))                                                             \
  F(void, set_stuck_limit, (double limit_s))                                                       \
  F(uint64_t, blocked_calls, ())                                                                   \
  F(int, wait_until_blocked, (uint64_t least, uint64_t most, double timeout_s))                    \
  /* Calls: -1 when there is no function of that name. */                                          \
  F(int, fail, (const char* function, int result, uint64_t after, int64_t count))                  \
  F(void, stop_failing, ())                                                                        \
  F(int, set_cost, (const char* function, int64_t ns))                                             \
  F(int, count, (const char* function, int result, int any_result, uint64_t* count))               \
  F(uint64_t, oldest_call, ())                                                                     \
  F(uint64_t, end_of_calls, ())                                                                    \
  F(void, read_call, (uint64_t i, sim::CallView* view))                                            \
  /* The truth. */                                                                                 \
  F(uint64_t, record_count, ())                                                                    \
  F(void, read_record, (uint64_t i, sim::RecordView* view))                                        \
  F(int, truth, (uint64_t event, sim::RecordView* view))                                           \
  F(uint64_t, violation_count, ())                                                                 \
  F(const char*, violation, (uint64_t i))                                                          \
  /* Kernels and memory. A stand-in is a void (*)(void** parameters), each of so many bytes. */    \
  F(void, on_launch, (const char* kernel, uint64_t function, uint64_t parameters, uint64_t bytes)) \
  F(void, set_kernel_duration, (const char* kernel, int64_t ns))                                   \
  F(uint64_t, launch_count, ())                                                                    \
  F(void, read_launch, (uint64_t i, sim::LaunchView* view))                                        \
  F(uint64_t, host_bytes, ())

/// The functions above, of a library that is loaded.
struct Control {
#define SIM_DECLARE(type, name, parameters) type(*name) parameters = nullptr;
  SIM_CONTROLS(SIM_DECLARE)
#undef SIM_DECLARE

  /// Finds them in the file that the code under test loads, so that both have the same instance.
  /// Returns what has failed, or an empty text.
  std::string load(const std::string& path) {
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return dlerror();
#define SIM_FIND(type, name, parameters)                                 \
  name = reinterpret_cast<decltype(name)>(dlsym(library, "sim_" #name)); \
  if (name == nullptr) return path + " has no sim_" #name;
    SIM_CONTROLS(SIM_FIND)
#undef SIM_FIND
    return {};
  }
};

}  // namespace sim
