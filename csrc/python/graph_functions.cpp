// SPDX-License-Identifier: Apache-2.0
//
// What the hooks of torch.cuda.CUDAGraph say of captures and replays.
#include <pybind11/stl.h>

#include <optional>
#include <utility>

#include "cuda/device_timing.h"
#include "hot/active_recording.h"
#include "python/bindings.h"
#include "python/gil_release.h"
#include "record/parts.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;
using cuda::DeviceTiming;

/// A capture: the number of its device's timeline, and its own.
using CaptureKey = std::pair<size_t, uint64_t>;

ThreadState* this_recording_thread() {
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  return epoch != 0 ? recording_thread(epoch) : nullptr;
}

cuda::EventTimeline* marked_timeline() {
  const GilRelease release;
  return DeviceTiming::instance().marked_timeline();
}

/// Nothing where it will have no marks.
std::optional<CaptureKey> graph_capture_begins() {
  DeviceTiming& timing = DeviceTiming::instance();
  DeviceTiming::Capture capture{marked_timeline(), 0};
  // With the GIL: where PyTorch can't tell, it sets a Python error.
  cuda::Stream stream = nullptr;
  if (capture.timeline == nullptr ||
      timing.current_stream(capture.timeline->device(), &stream) != 0)
    return std::nullopt;
  {
    const GilRelease release;
    capture.number = capture.timeline->stamps().capture_begins(stream);
  }
  const ThreadState* thread = this_recording_thread();
  if (capture.number == 0 || thread == nullptr) return std::nullopt;
  parts().graph_phases.capture_begins(capture, thread->innermost_path());
  timing.capture_begins();
  return CaptureKey{capture.timeline->number(), capture.number};
}

/// The number of the graph; nothing where it has no marks.
std::optional<uint32_t> graph_capture_ends(const CaptureKey& key, bool succeeded) {
  DeviceTiming& timing = DeviceTiming::instance();
  timing.capture_ends();
  const auto timelines = timing.timelines();
  if (key.first >= timelines.size()) return std::nullopt;
  const DeviceTiming::Capture capture{timelines[key.first], key.second};
  if (succeeded) return parts().graph_phases.capture_ends(capture);
  parts().graph_phases.capture_fails(capture);
  return std::nullopt;
}

/// False where it becomes a part of a graph that is being captured, and does not run.
bool graph_replay_begins(uint32_t graph) {
  DeviceTiming& timing = DeviceTiming::instance();
  cuda::Stream stream = nullptr;
  cuda::EventTimeline* timeline = nullptr;
  if (timing.is_capturing() && (timeline = marked_timeline()) != nullptr &&
      timing.current_stream(timeline->device(), &stream) == 0) {
    const GilRelease release;
    if (timeline->stamps().capture_of(stream) != 0) return false;
  }
  const ThreadState* thread = this_recording_thread();
  parts().graph_phases.replay_begins(
      graph, static_cast<uint32_t>(open_step.load(std::memory_order_relaxed)),
      thread != nullptr ? thread->innermost_path() : kNoPath);
  return true;
}

/// Calls it in relaxed capture mode: a call of CUDA that it makes breaks no capture.
py::object call_in_relaxed_mode(const py::object& function) {
  const cuda::Driver* const driver = cuda::driver_is_loaded() ? cuda::driver() : nullptr;
  if (driver == nullptr) return function();
  cuda::CaptureMode mode = cuda::kCaptureRelaxed;
  // It takes no lock of the driver's.
  if (driver->ThreadExchangeStreamCaptureMode(&mode) != cuda::kSuccess) return function();
  const struct Restore {
    const cuda::Driver& driver;
    cuda::CaptureMode& mode;
    ~Restore() { driver.ThreadExchangeStreamCaptureMode(&mode); }
  } restore{*driver, mode};
  return function();
}

}  // namespace

void add_graph_functions(py::module_& module) {
  module.def(
      "prepare_graph_capture", [] { DeviceTiming::instance().prepare_capture(); },
      py::call_guard<GilRelease>());
  module.def("call_in_relaxed_mode", &call_in_relaxed_mode, "function"_a);
  module.def("graph_capture_begins", &graph_capture_begins);
  module.def("graph_capture_ends", &graph_capture_ends, "capture"_a, py::kw_only(), "succeeded"_a);
  module.def("graph_replay_begins", &graph_replay_begins, "graph"_a);
  module.def(
      "graph_replay_failed", [](uint32_t graph) { parts().graph_phases.replay_failed(graph); },
      "graph"_a);
}

}  // namespace pig
