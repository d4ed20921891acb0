// SPDX-License-Identifier: Apache-2.0
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "hot/nvtx_range.h"
#include "metrics/kernel_store.h"
#include "python/activity_functions.h"
#include "python/frame_functions.h"
#include "python/gpu_phase_function.h"
#include "python/metric_functions.h"
#include "python/phase_registry.h"
#include "python/phase_type.h"
#include "python/python_hooks.h"
#include "python/scope_type.h"
#include "python/sync_functions.h"
#include "python/torch_stream.h"
#include "record/recorder.h"
#include "record/recording_thread.h"
#include "record/step.h"

namespace py = pybind11;

namespace pig {
namespace {

int64_t step_begin() {
  // The hooks belong to a recording.
  if (active_epoch.load(std::memory_order_relaxed) != 0) run_due_hooks();
  return begin_step();
}

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
  clock["kind"] = tick_kind_name(tick_kind);
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

py::bytes log_bytes() {
  std::vector<uint8_t> bytes;
  {
    const py::gil_scoped_release release;
    bytes = Recorder::instance().log_bytes();
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void open_tap() {
  const py::gil_scoped_release release;
  Recorder::instance().open_tap();
}

py::bytes take_tap() {
  std::vector<uint8_t> bytes;
  {
    const py::gil_scoped_release release;
    bytes = Recorder::instance().take_tap();
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void close_tap() {
  const py::gil_scoped_release release;
  Recorder::instance().close_tap();
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

// One recording per process: a second interpreter would record into the first one's.
constexpr const char* kRefusal =
    "pyinstrument_gpu records the main interpreter only, this is a subinterpreter";

bool is_main_interpreter() { return PyInterpreterState_Get() == PyInterpreterState_Main(); }

}  // namespace
}  // namespace pig

PYBIND11_MODULE(_C_main_interpreter, module, py::mod_gil_not_used()) {
  using namespace pig;
  if (!is_main_interpreter()) throw py::import_error(kRefusal);
  module.doc() = "The native side of pyinstrument_gpu. Its face is described in _C.pyi.";
  start_nvtx(current_thread_name);
  if (!ready_phase_type() || !ready_scope_type() || !ready_phase_registry() ||
      !add_frame_functions(module.ptr()) || !add_activity_functions(module.ptr()))
    throw py::error_already_set();
  module.attr("Phase") = py::handle(reinterpret_cast<PyObject*>(&phase_type_object));
  module.attr("Scope") = py::handle(reinterpret_cast<PyObject*>(scope_type()));
  module.attr("gpu_phase") = py::reinterpret_steal<py::object>(new_gpu_phase(module.ptr()));

  module.def("step_begin", &step_begin);
  module.def("step_item", &add_step_item, py::arg("token"), py::arg("samples"));
  module.def("step_mark", &mark_step, py::arg("token"));
  module.def("step_end", &end_step, py::arg("token"), py::arg("complete"),
             py::arg("at_mark") = false);
  module.def("step_drop", &drop_step, py::arg("token"));

  add_sync_functions(module);

  module.def("start", &start, py::arg("path"), py::arg("environment"), py::kw_only(),
             py::arg("overwrite"), py::arg("history_spans"), py::arg("max_bytes"), py::arg("nvtx"));
  module.def("stop", &stop, py::arg("environment"));
  module.def("flush", &flush, py::arg("timeout_s"));
  module.def("start_device_timing", &start_device_timing, py::kw_only(), py::arg("budget"),
             py::arg("share_boundaries_ns"), py::arg("all_side_streams"));
  module.def("attach_device", &attach_device, py::arg("exchange_api"));
  module.def("device_warnings", [] { return cuda::DeviceTiming::instance().take_warnings(); });
  module.def("log_bytes", &log_bytes);
  module.def("open_tap", &open_tap);
  module.def("take_tap", &take_tap);
  module.def("close_tap", &close_tap);
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

  add_metric_functions(module);

  /// For test-only modules: replaces the clock of the recordings that start from now on.
  module.attr("_tick_injector") = py::capsule(reinterpret_cast<void*>(&inject_tick_function),
                                              "pyinstrument_gpu._C._tick_injector");

  /// For test-only modules: forgets all devices, their kernels, and that PyTorch initialised CUDA.
  constexpr void (*detach)() = [] {
    cuda::DeviceTiming::detach();
    metrics::KernelStore::instance().forget();
  };
  module.attr("_device_detacher") =
      py::capsule(reinterpret_cast<void*>(detach), "pyinstrument_gpu._C._device_detacher");

  set_thread_name_function(current_thread_name);
  Recorder::set_error_callback(schedule_history_stopped);
  Recorder::set_device_warning_callback(schedule_device_warnings);
  Recorder::set_device_probe_callback(schedule_device_probe);
  Recorder::install_fork_handler();
}

// Asked here too, before pybind11 does anything: up to Python 3.11 its initialisation in a second
// interpreter waits for ever. (From 3.13 on this function runs in the main one, and only the
// module's body in the second.)
extern "C" PYBIND11_EXPORT PyObject* PyInit__C() {
  if (pig::is_main_interpreter()) return PyInit__C_main_interpreter();
  PyErr_SetString(PyExc_ImportError, pig::kRefusal);
  return nullptr;
}
