// SPDX-License-Identifier: Apache-2.0
#include "simulated_control.h"

#include <algorithm>
#include <cstring>

#include "simulated_driver.h"

// Defined by the same table that the tests load them by.
#define SIM_DECLARE(type, name, parameters) \
  extern "C" __attribute__((visibility("default"))) type sim_##name parameters;
SIM_CONTROLS(SIM_DECLARE)
#undef SIM_DECLARE

namespace sim {
namespace {

/// Runs `body` with the driver, locked.
template <typename Body>
auto locked(Body body) {
  SimulatedDriver& driver = SimulatedDriver::instance();
  return driver.locked([&] { return body(driver); });
}

/// What the test's program enqueues: like a call of the driver, it can be stuck.
template <typename Body>
int enqueue(Body body) {
  SimulatedDriver& driver = SimulatedDriver::instance();
  return driver.call(
      true, [] { return kSuccess; }, [&]() -> int { return body(driver.machine, driver.thread()); },
      [](int) {});
}

/// The same with a device; invalid device when there is none of that number.
template <typename Body>
int with_device(int ordinal, Body body) {
  return locked([&](SimulatedDriver& driver) -> int {
    Device* const device = driver.machine.device(ordinal);
    if (device == nullptr) return kInvalidDevice;
    body(driver, *device);
    return kSuccess;
  });
}

constexpr int kAllFunctions = -1;
constexpr int kNoFunction = -2;

int function_of(const char* name) {
  if (std::strcmp(name, "*") == 0) return kAllFunctions;
  const int index = function_index(name);
  return index >= 0 ? index : kNoFunction;
}

RecordView view_of(SimulatedDriver& driver, const Record& record) {
  const Device& device = *driver.machine.device(record.device);
  RecordView view{record.event,
                  record.stream,
                  record.thread,
                  record.host_ns,
                  record.device,
                  record.work->ended,
                  0,
                  0,
                  0};
  if (record.work->ended) {
    view.device_ns = record.work->end_ns;
    view.stamp_ns = device.stamp_ns(record.work->end_ns);
    // A slow clock shows one value for two host times: it was not before the call.
    view.done_host_ns = std::max(record.host_ns, device.clock.host_at(record.work->end_ns));
  }
  return view;
}

}  // namespace
}  // namespace sim

using namespace sim;  // NOLINT: the names to define are global

void sim_reset(int devices) { SimulatedDriver::instance().reset(devices); }
void sim_set_driver_version(int version) {
  locked([&](SimulatedDriver& driver) { driver.machine.driver_version = version; });
}
void sim_set_elapsed_polls(int polls) {
  locked([&](SimulatedDriver& driver) { driver.machine.elapsed_v2_polls = polls != 0; });
}

uint64_t sim_host_ns() {
  bool moved = false;
  const int64_t host_ns = SimulatedDriver::instance().host.read(&moved);
  if (moved) locked([](SimulatedDriver&) {});  // it may free who is stuck
  return static_cast<uint64_t>(host_ns);
}
uint64_t sim_now_ns() { return static_cast<uint64_t>(SimulatedDriver::instance().host.now_ns()); }
void sim_advance(int64_t ns) {
  locked([&](SimulatedDriver& driver) { driver.host.advance(ns); });
}
void sim_set_reading_costs(int64_t ns) { SimulatedDriver::instance().host.set_reading_costs(ns); }
int sim_next_host_ns(int64_t* host_ns) {
  return locked([&](SimulatedDriver& driver) { return driver.machine.next_host_ns(host_ns); });
}
void sim_run_dry() {
  locked([](SimulatedDriver& driver) { driver.machine.run_dry(); });
}

int sim_set_device_clock(int device, int64_t offset_ns, int64_t drift_ppb) {
  return with_device(
      device, [&](SimulatedDriver&, Device& found) { found.clock.reset(offset_ns, drift_ppb); });
}
int sim_set_tick(int device, int64_t tick_ns) {
  return with_device(device, [&](SimulatedDriver&, Device& found) { found.tick_ns = tick_ns; });
}
int sim_set_timer(int device, int64_t offset_ns, int64_t step_ns) {
  return with_device(device, [&](SimulatedDriver&, Device& found) {
    found.timer_offset_ns = offset_ns;
    found.timer_step_ns = step_ns;
  });
}
int sim_set_record_latency(int device, int64_t min_ns, int64_t max_ns, uint64_t seed) {
  return with_device(device, [&](SimulatedDriver&, Device& found) {
    found.record_latency_min_ns = min_ns;
    found.record_latency_max_ns = max_ns;
    found.random.seed(seed);
  });
}
int sim_set_record_duration(int device, int64_t ns) {
  return with_device(device, [&](SimulatedDriver&, Device& found) { found.record_ns = ns; });
}
int sim_set_queue_depth(int device, uint64_t entries) {
  return with_device(device, [&](SimulatedDriver&, Device& found) { found.queue_depth = entries; });
}
int sim_set_hardware_queues(int device, uint64_t count) {
  return with_device(device, [&](SimulatedDriver&, Device& found) {
    found.hardware_queues.assign(count, nullptr);
  });
}
int sim_set_elapsed_resolution(int device, int64_t resolution_ns) {
  return with_device(device, [&](SimulatedDriver&, Device& found) {
    found.elapsed_resolution_ns = resolution_ns;
  });
}
int sim_set_attribute(int device, int attribute, int value) {
  return with_device(device,
                     [&](SimulatedDriver&, Device& found) { found.attributes[attribute] = value; });
}
int sim_device_ns(int device, int64_t* device_ns) {
  return with_device(device, [&](SimulatedDriver& driver, Device& found) {
    *device_ns = found.clock.at(driver.host.now_ns());
  });
}

#define SIM_OF_MACHINE(name, parameters, ...)                                                 \
  int sim_##name parameters {                                                                 \
    return locked([&](SimulatedDriver& driver) { return driver.machine.name(__VA_ARGS__); }); \
  }
SIM_OF_MACHINE(activate, (int device, uint64_t* context), device, context)
SIM_OF_MACHINE(deactivate, (int device), device)
SIM_OF_MACHINE(create_context, (int device, uint64_t* context), device, context)
SIM_OF_MACHINE(poison, (uint64_t context, int result), context, result)
SIM_OF_MACHINE(create_stream, (uint64_t context, unsigned flags, uint64_t* stream), context, flags,
               stream)
SIM_OF_MACHINE(destroy_stream, (uint64_t stream), driver.thread(), stream)
SIM_OF_MACHINE(destroy_event, (uint64_t event), event)
SIM_OF_MACHINE(release, (uint64_t stream), driver.thread(), stream)
SIM_OF_MACHINE(pending, (uint64_t stream, uint64_t* count), driver.thread(), stream, count)
SIM_OF_MACHINE(end_capture, (uint64_t stream, uint64_t* graph), driver.thread(), stream, graph)
SIM_OF_MACHINE(begin_next_early, (uint64_t stream), driver.thread(), stream)
SIM_OF_MACHINE(graph_entries, (uint64_t graph, uint64_t* entries), graph, entries)
#undef SIM_OF_MACHINE

int sim_make_current(uint64_t context) {
  return locked([&](SimulatedDriver& driver) {
    return driver.machine.ctx_set_current(driver.thread(), context);
  });
}
uint64_t sim_current_context() {
  return locked([](SimulatedDriver& driver) { return driver.thread().context; });
}
int64_t sim_retained(int device) {
  int64_t retained = -1;
  with_device(device, [&](SimulatedDriver&, Device& found) { retained = found.retained; });
  return retained;
}

void sim_reuse_handles(int reuse) {
  locked([&](SimulatedDriver& driver) { driver.machine.reuse_handles(reuse != 0); });
}
int sim_launch(uint64_t stream, int64_t duration_ns) {
  return enqueue([&](Machine& machine, Thread& thread) {
    return machine.launch(thread, stream, duration_ns);
  });
}
int sim_hang(uint64_t stream) {
  return enqueue([&](Machine& machine, Thread& thread) { return machine.hang(thread, stream); });
}
int sim_wait_event(uint64_t stream, uint64_t event) {
  return enqueue(
      [&](Machine& machine, Thread& thread) { return machine.wait_event(thread, stream, event); });
}
int sim_begin_capture(uint64_t stream, int mode) {
  return locked([&](SimulatedDriver& driver) {
    return driver.machine.begin_capture(driver.thread(), stream,
                                        static_cast<pig::cuda::CaptureMode>(mode));
  });
}
int sim_capture_status(uint64_t stream, int* status) {
  return locked([&](SimulatedDriver& driver) {
    auto found = pig::cuda::kNotCapturing;
    const Result result = driver.machine.stream_is_capturing(driver.thread(), stream, &found);
    *status = found;
    return result;
  });
}
int sim_launch_graph(uint64_t graph, uint64_t stream) {
  std::shared_ptr<const Graph> launched;
  const int result = enqueue([&](Machine& machine, Thread& thread) {
    return machine.launch_graph(thread, graph, stream, &launched);
  });
  if (launched == nullptr) return result;
  for (const Node& node : launched->nodes)
    if (node.run) node.run();
  return result;
}
int sim_memset(uint64_t stream, uint64_t address, uint64_t bytes, int value) {
  std::function<void()> run;
  const int result = enqueue([&](Machine& machine, Thread& thread) {
    return machine.memset(thread, stream, reinterpret_cast<void*>(address), bytes, value, &run);
  });
  if (run) run();
  return result;
}
int sim_allocate(uint64_t stream, uint64_t address, uint64_t bytes) {
  std::function<void()> run;
  const int result = enqueue([&](Machine& machine, Thread& thread) {
    return machine.allocate(thread, stream, reinterpret_cast<void*>(address), bytes, &run);
  });
  if (run) run();
  return result;
}
uint64_t sim_captures_invalidated() {
  return locked([](SimulatedDriver& driver) { return driver.machine.captures_invalidated(); });
}

void sim_set_driver_lock(int lock) {
  locked([&](SimulatedDriver& driver) {
    driver.driver_lock = static_cast<SimulatedDriver::DriverLock>(lock);
  });
}
void sim_set_stuck_limit(double limit_s) {
  locked([&](SimulatedDriver& driver) { driver.stuck_limit_s = limit_s; });
}
uint64_t sim_blocked_calls() {
  return locked([](SimulatedDriver& driver) { return driver.blocked_calls(); });
}
int sim_wait_until_blocked(uint64_t least, uint64_t most, double timeout_s) {
  return SimulatedDriver::instance().wait_until_blocked(least, most, timeout_s);
}

int sim_fail(const char* function, int result, uint64_t after, int64_t count) {
  const int index = function_of(function);
  if (index == kNoFunction) return -1;
  locked([&](SimulatedDriver& driver) { driver.calls.fail(index, result, after, count); });
  return 0;
}
void sim_stop_failing() {
  locked([](SimulatedDriver& driver) { driver.calls.stop_failing(); });
}
int sim_set_cost(const char* function, int64_t ns) {
  const int index = function_of(function);
  if (index == kNoFunction) return -1;
  locked([&](SimulatedDriver& driver) { driver.calls.set_cost(index, ns); });
  return 0;
}
int sim_count(const char* function, int result, int any_result, uint64_t* count) {
  const int index = function_of(function);
  if (index == kNoFunction) return -1;
  *count = 0;
  locked([&](SimulatedDriver& driver) {
    for (int i = 0; i < static_cast<int>(kFunctionNames.size()); ++i) {
      if (index != kAllFunctions && index != i) continue;
      for (const auto& [seen, calls] : driver.calls.counts(i))
        if (any_result || seen == result) *count += calls;
    }
  });
  return 0;
}
uint64_t sim_oldest_call() {
  return locked([](SimulatedDriver& driver) { return driver.calls.oldest(); });
}
uint64_t sim_end_of_calls() {
  return locked([](SimulatedDriver& driver) { return driver.calls.logged(); });
}
void sim_read_call(uint64_t i, CallView* view) {
  locked([&](SimulatedDriver& driver) {
    const Call& call = driver.calls.at(i);
    *view = {kFunctionNames[static_cast<size_t>(call.function)],
             call.result,
             call.thread,
             call.host_ns,
             {}};
    std::copy(call.arguments.begin(), call.arguments.end(), view->arguments);
  });
}

uint64_t sim_record_count() {
  return locked([](SimulatedDriver& driver) { return driver.machine.records().size(); });
}
void sim_read_record(uint64_t i, RecordView* view) {
  locked([&](SimulatedDriver& driver) {
    driver.machine.catch_up();
    *view = view_of(driver, driver.machine.records()[i]);
  });
}
int sim_truth(uint64_t event, RecordView* view) {
  return locked([&](SimulatedDriver& driver) {
    driver.machine.catch_up();
    const Record* const record = driver.machine.last_record(event);
    if (record == nullptr) return 0;
    *view = view_of(driver, *record);
    return 1;
  });
}
uint64_t sim_violation_count() {
  return locked([](SimulatedDriver& driver) { return driver.machine.violations().size(); });
}
const char* sim_violation(uint64_t i) {
  return locked([&](SimulatedDriver& driver) { return driver.machine.violations()[i].c_str(); });
}

void sim_on_launch(const char* kernel, uint64_t function, uint64_t parameters, uint64_t bytes) {
  locked([&](SimulatedDriver& driver) {
    driver.machine.set_stand_in(kernel,
                                {reinterpret_cast<void (*)(void**)>(function), parameters, bytes});
  });
}
void sim_set_kernel_duration(const char* kernel, int64_t ns) {
  locked([&](SimulatedDriver& driver) { driver.machine.set_kernel_duration(kernel, ns); });
}
uint64_t sim_launch_count() {
  return locked([](SimulatedDriver& driver) { return driver.machine.launches().size(); });
}
void sim_read_launch(uint64_t i, LaunchView* view) {
  locked([&](SimulatedDriver& driver) {
    const Launch& launch = driver.machine.launches()[i];
    *view = {launch.kernel.c_str(), {}, {}, launch.shared_bytes, launch.stream, launch.thread,
             launch.host_ns};
    std::copy_n(launch.grid, 3, view->grid);
    std::copy_n(launch.block, 3, view->block);
  });
}
uint64_t sim_host_bytes() {
  return locked([](SimulatedDriver& driver) { return driver.machine.host_bytes(); });
}
