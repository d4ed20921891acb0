// SPDX-License-Identifier: Apache-2.0
//
// The floor for benchmarks: what recording a phase costs without Python. Each loop runs the
// recorder's own begin and end on a state that has no harvester. And what stands in for PyTorch and
// its device where a benchmark leaves out what is theirs.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <stdexcept>

#include "base/clock.h"
#include "base/dlpack.h"
#include "base/drops.h"
#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "cuda/driver.h"
#include "hot/path_table.h"
#include "hot/thread_state.h"
#include "native_module.h"
#include "record/span_statistics.h"
#include "record/step_tracker.h"

namespace py = pybind11;

namespace {

constexpr pig::Caller kCaller = {8, 16};

/// One thread's recording state.
class PhaseLoop {
 public:
  /// `statistics`: fold the spans whenever the ring is full. Otherwise they are thrown away.
  explicit PhaseLoop(bool statistics) : statistics_(statistics) {
    pig::tick_kind = pig::choose_tick_kind();
    clock_.start();
    reset();
  }

  void run(uint64_t uses, uint32_t depth) {
    for (uint64_t i = 0; i < uses; ++i) {
      for (uint32_t phase = 0; phase < depth; ++phase) state_->begin(phase, kCaller);
      for (uint32_t phase = depth; phase-- > 0;) state_->end(phase, kCaller, pig::read_ticks());
    }
  }

 protected:
  /// Empties all rings.
  void reset() {
    steps_.reset({clock_, drops_, {}});
    overflow_.reset(clock_, drops_);
    state_->reset({&paths_, &drops_, statistics_ ? &overflow_ : nullptr, [] {}}, /*epoch=*/1,
                  /*serial=*/0);
  }

  pig::Clock clock_;
  pig::DropCounters drops_;

 private:
  const bool statistics_;
  pig::PathTable paths_;
  pig::StepTracker steps_;
  pig::OverflowStatistics overflow_{steps_};
  std::unique_ptr<pig::ThreadState> state_ = std::make_unique<pig::ThreadState>();
};

/// The default stream, at the least cost.
int default_stream(int32_t, void** stream) {
  *stream = nullptr;
  return 0;
}

/// The same with every phase marked on a device. The driver is the library that
/// PYINSTRUMENT_GPU_LIBCUDA names. This module has device timing of its own, not that of the
/// installed one.
class DevicePhaseLoop : public PhaseLoop {
 public:
  DevicePhaseLoop() : PhaseLoop(/*statistics=*/true) {
    if (!timing().attach({default_stream})) throw std::runtime_error(pig::cuda::driver_error());
  }
  ~DevicePhaseLoop() { timing().finish(); }

  /// `share_boundaries_ns` as in a recording.
  void start(uint64_t share_boundaries_ns) {
    reset();
    timing().start({std::numeric_limits<double>::infinity(), share_boundaries_ns, false}, clock_,
                   drops_, [] {});
    timing().open_gate();
    timing().step_begins();
    pig::active_epoch = 1;
  }

  /// Since the start.
  uint64_t records() const { return timing().records(); }

 private:
  static pig::cuda::DeviceTiming& timing() { return pig::cuda::DeviceTiming::instance(); }
};

int stub_work_stream(pig::dlpack::DeviceType, int32_t device, void** stream) {
  return default_stream(device, stream);
}

pig::dlpack::ExchangeApi stub_exchange_api = {{{pig::dlpack::kMajorVersion, 3}, nullptr},
                                              nullptr,
                                              nullptr,
                                              nullptr,
                                              nullptr,
                                              stub_work_stream};

}  // namespace

PYBIND11_MODULE(_phase_loop, module, pybind11::mod_gil_not_used()) {
  py::class_<PhaseLoop>(module, "PhaseLoop")
      .def(py::init<bool>(), py::kw_only(), py::arg("statistics"))
      .def("run", &PhaseLoop::run, py::arg("uses"), py::arg("depth") = 1);
  py::class_<DevicePhaseLoop, PhaseLoop>(module, "DevicePhaseLoop")
      .def(py::init<>())
      .def("start", &DevicePhaseLoop::start, py::arg("share_boundaries_ns"))
      .def_property_readonly("records", &DevicePhaseLoop::records);
  module.def("stub_exchange_api",
             [] { return py::capsule(&stub_exchange_api, pig::dlpack::kCapsuleName); });
  module.def("detach", detach_devices);
}
