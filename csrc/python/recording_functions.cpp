// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "base/dlpack.h"
#include "base/loaded_library.h"
#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "cuda/driver_scopes.h"
#include "hot/nvtx_range.h"
#include "python/bindings.h"
#include "python/gil_release.h"
#include "python/open_step.h"
#include "python/phase_registry.h"
#include "python/python_hooks.h"
#include "python/recording_owner.h"
#include "python/stall_program.h"
#include "record/parts.h"
#include "record/recorder.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

/// None where a recording is active.
py::object start(const py::object& recording, std::optional<std::string> path,
                 const py::bytes& environment, bool overwrite, uint64_t history_spans,
                 uint64_t max_bytes, bool nvtx, int64_t watchdog_ns) {
  constexpr int kOwnFrames = 3;  // Recording._begin, _start and __enter__
  if (!RecordingOwner::claim(recording, kOwnFrames)) return py::none();
  // As bytes: a path need not be Unicode.
  const py::object shown = path ? py::object(py::bytes(*path)) : py::object(py::none());
  ClockAnchor anchor;
  try {
    anchor = Recorder::instance().start(
        {std::move(path), overwrite, history_spans, max_bytes, environment, watchdog_ns});
  } catch (const std::system_error& error) {
    RecordingOwner::release();
    // An OSError of the right subclass (FileExistsError, ...), as open() would raise it.
    const std::string reason = error.code().value() == EBUSY
                                   ? "another process is recording into it"
                                   : error.code().message();
    const py::object arguments = py::make_tuple(error.code().value(), reason, shown);
    PyErr_SetObject(PyExc_OSError, arguments.ptr());
    throw py::error_already_set();
  } catch (...) {
    RecordingOwner::release();
    throw;
  }
  set_nvtx_enabled(nvtx);
  Recorder& recorder = Recorder::instance();
  recorder.drops().add(Drop::kLongNames, cut_name_count());  // those of before
  return py::dict(
      "run_id"_a = py::str("{:016x}").format(recorder.run_id()),
      "clock"_a = py::dict("kind"_a = kTickKindNames[static_cast<int>(tick_kind)],
                           "frequency_hz"_a = recorder.clock().frequency_hz()),
      "anchor"_a = py::dict("run_ns"_a = anchor.run_ns, "monotonic_ns"_a = anchor.monotonic_ns,
                            "monotonic_raw_ns"_a = anchor.monotonic_raw_ns,
                            "realtime_ns"_a = anchor.realtime_ns));
}

/// None where the recording is not the owner, as below.
py::object stop(const py::object& recording, const py::object& environment) {
  const auto owner = RecordingOwner::of(recording);
  return owner != nullptr ? py::object(owner->stop(environment)) : py::none();
}

py::object log_bytes(const py::object& recording) {
  const auto owner = RecordingOwner::of(recording);
  return owner != nullptr ? owner->log_bytes() : py::none();
}

/// Does something without the GIL, if the recording is the owner.
template <typename Function>
void for_owner(const py::object& recording, Function function) {
  if (RecordingOwner::of(recording) == nullptr) return;
  const GilRelease release;
  function(Recorder::instance());
}

py::object owner() {
  const auto owner = RecordingOwner::current();
  return owner != nullptr ? owner->recording() : py::none();
}

bool owner_is_left_over() {
  const auto owner = RecordingOwner::current();
  return owner != nullptr && owner->is_left_over();
}

void set_document(const py::object& recording, const std::string& name, std::string json) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  };
  if (name.empty() || !std::all_of(name.begin(), name.end(), fits))
    throw py::value_error("the name of a document has small letters, digits and underscores");
  for_owner(recording, [&](Recorder&) { parts().documents.set(name, std::move(json)); });
}

/// With the GIL, which lasts for microseconds: so the recording is the owner until its end.
size_t append_collectives(const py::object& recording, const py::bytes& items) {
  if (RecordingOwner::of(recording) == nullptr) return 0;
  const std::string_view bytes = items;
  return parts().collectives.append({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
}

/// The run's clock and that of the wall, read together.
py::tuple read_clocks() {
  const ClockAnchor anchor = Recorder::instance().clock().anchor();
  return py::make_tuple(anchor.run_ns, anchor.realtime_ns);
}

/// The number of the newest stall of the recording that is active, and what was noticed; or None.
py::object newest_stall() {
  const auto stall = parts().stalls.log().newest();
  if (!stall) return py::none();
  PyObject* const sentence = PyUnicode_DecodeUTF8(
      stall->second.data(), static_cast<Py_ssize_t>(stall->second.size()), "replace");
  if (sentence == nullptr) throw py::error_already_set();
  return py::make_tuple(stall->first, py::reinterpret_steal<py::object>(sentence));
}

/// Returns whether it is the caller's to say.
bool answer_stall_with(uint64_t number, std::string object) {
  StallLog& stalls = parts().stalls.log();
  return stalls.answer(number, std::move(object)) && stalls.may_be_said(number);
}

uint64_t open_subscription(const py::object& recording) {
  uint64_t number = 0;
  for_owner(recording, [&](Recorder& recorder) { number = recorder.open_subscription(); });
  return number;
}

py::bytes take_subscription(const py::object& recording, uint64_t number) {
  std::vector<uint8_t> bytes;
  for_owner(recording, [&](Recorder& recorder) { bytes = recorder.take_subscription(number); });
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool flush(double timeout_s) {
  // In between signals are looked for: a wait for a hung device ends with Ctrl-C.
  constexpr double kLongestWaitS = 0.1;
  for (;; timeout_s -= kLongestWaitS) {
    const double wait_s = std::min(timeout_s, kLongestWaitS);
    {
      const GilRelease release;
      if (Recorder::instance().flush(std::chrono::nanoseconds(static_cast<int64_t>(wait_s * 1e9))))
        return true;
    }
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (timeout_s <= kLongestWaitS) return false;
  }
}

const dlpack::ExchangeApi* exchange_api = nullptr;

int stream_by_exchange_api(int32_t device, void** stream) {
  if (PIG_LIKELY(exchange_api->current_work_stream(dlpack::kCuda, device, stream) == 0)) return 0;
  PyErr_Clear();
  return -1;
}

const dlpack::ExchangeApi* api_of(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, dlpack::kCapsuleName) == 0) return nullptr;
  const auto* header = static_cast<const dlpack::ExchangeApiHeader*>(
      PyCapsule_GetPointer(capsule, dlpack::kCapsuleName));
  while (header != nullptr && header->version.major != dlpack::kMajorVersion)
    header = header->previous;
  return reinterpret_cast<const dlpack::ExchangeApi*>(header);
}

/// How to ask PyTorch for the calling thread's current CUDA stream: through the DLPack exchange API
/// in the capsule torch.Tensor.__dlpack_c_exchange_api__, or, given None (torch before 2.10), a
/// function that libtorch_cuda.so exports; null when there is no such way. And for its current
/// device: a function that libtorch_cpu.so exports, which never makes a context.
cuda::TorchFunctions torch_functions(PyObject* capsule) {
  cuda::TorchFunctions functions;
  if (const dlpack::ExchangeApi* api = api_of(capsule)) {
    exchange_api = api;
    functions.current_stream = stream_by_exchange_api;
  } else {
    functions.current_stream = loaded_function<decltype(functions.current_stream)>(
        "libtorch_cuda.so", "aoti_torch_get_current_cuda_stream");
  }
  functions.current_device = loaded_function<decltype(functions.current_device)>(
      "libtorch_cpu.so", "aoti_torch_get_current_device_index");
  return functions;
}

bool attach_device(const py::object& capsule) {
  const cuda::TorchFunctions torch = torch_functions(capsule.ptr());
  cuda::BlockingCall::hooks = {GilRelease::give_away, GilRelease::take_back};
  const GilRelease release;
  cuda::DeviceTiming::instance().attach(torch);
  return torch.current_stream != nullptr;
}

/// Sets the calling thread's state aside within a block.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { take_back(); }
  void begin() {
    parts().begin_scratch();
    is_begun_ = true;
  }
  void end(const py::args&) { take_back(); }

 private:
  void take_back() {
    if (std::exchange(is_begun_, false)) parts().end_scratch();
  }

  bool is_begun_ = false;
};

py::dict status() {
  const Recorder& recorder = Recorder::instance();
  std::string error;
  {
    const GilRelease release;  // the harvester may be waiting for a disk
    error = recorder.error();
  }
  return py::dict("recording"_a = recorder.recording(),
                  "error"_a = error.empty() ? py::object(py::none()) : py::str(error));
}

void set_hooks(const py::object& decorate, const py::object& thread_name,
               const py::object& history_stopped, const py::object& device_warnings,
               const py::object& device_probe, const py::object& program_facts,
               const py::object& stall, const py::object& statement,
               const py::object& phase_name_error) {
  const auto kept = [](const py::object& object) { return py::object(object).release().ptr(); };
  python_hooks = {kept(decorate),
                  kept(thread_name),
                  kept(statement),
                  kept(phase_name_error),
                  {kept(history_stopped), kept(device_warnings), kept(device_probe),
                   kept(program_facts), kept(stall)}};
}

}  // namespace

void add_recording_functions(py::module_& module) {
  const py::call_guard<GilRelease> without_gil;
  module.def("start", &start, "recording"_a, "path"_a, "environment"_a, py::kw_only(),
             "overwrite"_a, "history_spans"_a, "max_bytes"_a, "nvtx"_a, "watchdog_ns"_a);
  module.def("stop", &stop, "recording"_a, "environment"_a);
  module.def(
      "release",
      [](const py::object& recording) {
        if (RecordingOwner::of(recording) != nullptr) RecordingOwner::release();
      },
      "recording"_a);
  module.def("owner", &owner);
  module.def("owner_is_left_over", &owner_is_left_over);
  module.def("harvest", [] { Recorder::instance().harvest_now(); }, without_gil);
  module.def("flush", &flush, "timeout_s"_a);
  module.def(
      "start_device_timing",
      [](double budget, uint64_t share_boundaries_ns, bool all_side_streams, uint32_t graph_nodes) {
        Recorder::instance().start_device_timing(
            {budget, share_boundaries_ns, all_side_streams, graph_nodes});
      },
      without_gil, py::kw_only(), "budget"_a, "share_boundaries_ns"_a, "all_side_streams"_a,
      "graph_nodes"_a);
  module.def("attach_device", &attach_device, "exchange_api"_a);
  module.def("devices_in_use", [] { return cuda::DeviceTiming::instance().devices_in_use(); });
  module.def("device_warnings", [] { return cuda::DeviceTiming::instance().take_warnings(); });
  module.def("log_bytes", &log_bytes, "recording"_a);
  module.def("open_subscription", &open_subscription, "recording"_a);
  module.def("take_subscription", &take_subscription, "recording"_a, "number"_a);
  module.def(
      "close_subscription",
      [](const py::object& of, uint64_t number) {
        for_owner(of, [number](Recorder& it) { it.close_subscription(number); });
      },
      "recording"_a, "number"_a);
  module.def("set_document", &set_document, "recording"_a, "name"_a, "json"_a);
  module.def(
      "add_to_step",
      [](std::string_view name, double value) { parts().metrics.add_to_step(name, value); },
      "name"_a, "value"_a);
  module.def(
      "watch_run_queue",
      [](std::string path, const std::vector<std::string>& groups) {
        parts().host_use.watch_run_queue(std::move(path), groups);
      },
      "path"_a, "groups"_a = std::vector<std::string>());
  module.def("append_collectives", &append_collectives, "recording"_a, "items"_a);
  module.def("newest_stall", &newest_stall);
  module.def("answer_stall", &answer_stall_with, "number"_a, "answer"_a);
  module.def(
      "withdraw_stall", [](uint64_t number) { parts().stalls.log().withdraw(number); }, "number"_a);
  module.def("set_stall_program", &set_stall_program, "command"_a, "environment"_a);
  module.def("read_clocks", &read_clocks);
  module.def("status", &status);
  py::class_<Scratch>(module, "Scratch")
      .def(py::init<>())
      .def("__enter__", &Scratch::begin)
      .def("__exit__", &Scratch::end);
  module.def("disable", [] {
    set_nvtx_enabled(false);
    tolerate_too_many_names();
  });
  module.def("count_no_memory", [] { count_drop(Drop::kNoMemory); });
  module.def("set_nvtx", &set_nvtx_enabled, "enabled"_a);
  module.def("set_hooks", &set_hooks, py::kw_only(), "decorate"_a, "thread_name"_a,
             "history_stopped"_a, "device_warnings"_a, "device_probe"_a, "program_facts"_a,
             "stall"_a, "statement"_a, "phase_name_error"_a);
  module.def(
      "set_before_step", [](const py::object& function) { set_before_step(function.ptr()); },
      "function"_a);
  module.def(
      "call_before_step",
      [](const py::object& function, uint64_t after) { call_before_step(function.ptr(), after); },
      "function"_a, py::kw_only(), "after"_a = 0);
  module.def(
      "set_profiled", [](bool profiled) { return parts().steps().set_profiled(profiled); },
      "profiled"_a);
}

}  // namespace pig
