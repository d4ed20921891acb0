// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "hot/nvtx_range.h"
#include "python/bindings.h"
#include "python/phase_registry.h"
#include "python/python_hooks.h"
#include "python/torch_stream.h"
#include "record/recorder.h"

namespace py = pybind11;

namespace pig {
namespace {

py::dict anchor_dict(const ClockAnchor& anchor) {
  py::dict dict;
  dict["run_ns"] = anchor.run_ns;
  dict["monotonic_ns"] = anchor.monotonic_ns;
  dict["monotonic_raw_ns"] = anchor.monotonic_raw_ns;
  dict["realtime_ns"] = anchor.realtime_ns;
  return dict;
}

py::dict start(std::optional<std::string> path, const py::bytes& environment, bool overwrite,
               uint64_t history_spans, uint64_t max_bytes, bool nvtx) {
  // As bytes: a path need not be Unicode.
  const py::object shown = path ? py::object(py::bytes(*path)) : py::object(py::none());
  ClockAnchor anchor;
  try {
    anchor = Recorder::instance().start(
        {std::move(path), overwrite, history_spans, max_bytes, environment});
  } catch (const std::system_error& error) {
    // An OSError of the right subclass (FileExistsError, ...), as open() would raise it.
    const std::string reason = error.code().value() == EBUSY
                                   ? "another process is recording into it"
                                   : error.code().message();
    const py::object arguments = py::make_tuple(error.code().value(), reason, shown);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
  }
  set_nvtx_enabled(nvtx);
  py::dict clock;
  clock["kind"] = kTickKindNames[static_cast<int>(tick_kind)];
  clock["frequency_hz"] = Recorder::instance().clock().frequency_hz();
  py::dict result;
  result["run_id"] = py::str("{:016x}").format(Recorder::instance().run_id());
  result["clock"] = clock;
  result["anchor"] = anchor_dict(anchor);
  return result;
}

void stop(const py::bytes& environment) {
  Recorder& recorder = Recorder::instance();
  if (!recorder.recording()) return;
  recorder.close_gate();
  set_nvtx_enabled(true);
  std::string json = environment;
  const py::gil_scoped_release release;
  recorder.set_environment(std::move(json));
  recorder.stop();
}

void set_environment(const py::bytes& environment) {
  std::string json = environment;
  const py::gil_scoped_release release;
  Recorder::instance().set_environment(std::move(json));
}

bool flush(double timeout_s) {
  // In between signals are looked for: a wait for a hung device ends with Ctrl-C.
  constexpr double kLongestWaitS = 0.1;
  for (;; timeout_s -= kLongestWaitS) {
    const double wait_s = std::min(timeout_s, kLongestWaitS);
    {
      const py::gil_scoped_release release;
      if (Recorder::instance().flush(std::chrono::nanoseconds(static_cast<int64_t>(wait_s * 1e9))))
        return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (timeout_s <= kLongestWaitS) return false;
  }
}

void start_device_timing(double budget, uint64_t share_boundaries_ns, bool all_side_streams) {
  const py::gil_scoped_release release;
  Recorder::instance().start_device_timing({budget, share_boundaries_ns, all_side_streams});
}

bool attach_device(const py::object& exchange_api) {
  const cuda::StreamFunction function = torch_stream_function(exchange_api.ptr());
  const py::gil_scoped_release release;
  Recorder::instance().attach_device(function);
  return function != nullptr;
}

/// What is read without the GIL.
py::bytes bytes_of(std::vector<uint8_t> (Recorder::*read)()) {
  std::vector<uint8_t> bytes;
  {
    const py::gil_scoped_release release;
    bytes = (Recorder::instance().*read)();
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

py::dict status() {
  const Recorder& recorder = Recorder::instance();
  std::string error;
  {
    const py::gil_scoped_release release;  // the harvester may be waiting for a disk
    error = recorder.error();
  }
  py::dict dict;
  dict["recording"] = recorder.recording();
  dict["error"] = error.empty() ? py::object(py::none()) : py::object(py::str(error));
  return dict;
}

void set_hooks(const py::object& decorate, const py::object& thread_name,
               const py::object& history_stopped, const py::object& device_warnings,
               const py::object& device_probe, const py::object& phase_name_error) {
  const auto kept = [](const py::object& object) { return py::object(object).release().ptr(); };
  python_hooks = {kept(decorate),        kept(thread_name),  kept(history_stopped),
                  kept(device_warnings), kept(device_probe), kept(phase_name_error)};
}

}  // namespace

void add_recording_functions(py::module_& module) {
  module.def("start", &start, py::arg("path"), py::arg("environment"), py::kw_only(),
             py::arg("overwrite"), py::arg("history_spans"), py::arg("max_bytes"), py::arg("nvtx"));
  module.def("stop", &stop, py::arg("environment"));
  module.def("flush", &flush, py::arg("timeout_s"));
  module.def("start_device_timing", &start_device_timing, py::kw_only(), py::arg("budget"),
             py::arg("share_boundaries_ns"), py::arg("all_side_streams"));
  module.def("attach_device", &attach_device, py::arg("exchange_api"));
  module.def("device_warnings", [] { return cuda::DeviceTiming::instance().take_warnings(); });
  module.def("log_bytes", [] { return bytes_of(&Recorder::log_bytes); });
  const py::call_guard<py::gil_scoped_release> without_gil;
  module.def("open_tap", [] { Recorder::instance().open_tap(); }, without_gil);
  module.def("take_tap", [] { return bytes_of(&Recorder::take_tap); });
  module.def("close_tap", [] { Recorder::instance().close_tap(); }, without_gil);
  module.def("set_environment", &set_environment, py::arg("environment"));
  module.def("status", &status);
  module.def("begin_scratch", [] { Recorder::instance().begin_scratch(); });
  module.def("end_scratch", [] { Recorder::instance().end_scratch(); });
  module.def("disable", [] {
    set_nvtx_enabled(false);
    tolerate_too_many_names();
  });
  module.def("set_nvtx", &set_nvtx_enabled, py::arg("enabled"));
  module.def("set_hooks", &set_hooks, py::kw_only(), py::arg("decorate"), py::arg("thread_name"),
             py::arg("history_stopped"), py::arg("device_warnings"), py::arg("device_probe"),
             py::arg("phase_name_error"));
}

}  // namespace pig
