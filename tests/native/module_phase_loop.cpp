// SPDX-License-Identifier: Apache-2.0
//
// The floor for benchmarks: what recording a phase costs without Python. Each loop runs the
// recorder's own begin and end on a state that has no harvester.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>

#include "clock.h"
#include "drops.h"
#include "path_table.h"
#include "step_tracker.h"
#include "thread_state.h"
#include "ticks.h"

namespace py = pybind11;

namespace {

/// One thread's recording state.
class PhaseLoop {
 public:
  /// `statistics`: fold the spans whenever the ring is full. Otherwise they are thrown away.
  explicit PhaseLoop(bool statistics) {
    pig::tick_kind = pig::choose_tick_kind();
    clock_.start();
    steps_.reset(&clock_, &drops_);
    state_->reset({&paths_, &drops_, &clock_, &steps_, [] {}}, /*epoch=*/1, /*serial=*/0,
                  /*scratch=*/!statistics);
  }

  void run(uint64_t uses, uint32_t depth) {
    for (uint64_t i = 0; i < uses; ++i) {
      for (uint32_t phase = 0; phase < depth; ++phase) state_->begin(phase);
      for (uint32_t phase = depth; phase-- > 0;) state_->end(phase);
    }
  }

 private:
  pig::Clock clock_;
  pig::DropCounters drops_;
  pig::PathTable paths_;
  pig::StepTracker steps_;
  std::unique_ptr<pig::ThreadState> state_ = std::make_unique<pig::ThreadState>();
};

}  // namespace

PYBIND11_MODULE(_phase_loop, module) {
  py::class_<PhaseLoop>(module, "PhaseLoop")
      .def(py::init<bool>(), py::kw_only(), py::arg("statistics"))
      .def("run", &PhaseLoop::run, py::arg("uses"), py::arg("depth") = 1);
}
