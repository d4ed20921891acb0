// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "hot/active_recording.h"
#include "hot/frame.h"
#include "hot/module_stack.h"
#include "hot/phase_table.h"
#include "hot/span.h"
#include "hot/thread_state.h"
#include "python/bindings.h"
#include "python/memory_watch.h"
#include "record/parts.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

py::list take_readings() {
  py::list taken;
  for (const MemoryReading& each : MemoryWatch::instance().readings())
    taken.append(py::make_tuple(each.kind, each.step, each.path, each.depth, each.allocated,
                                each.allocated_peak, each.reserved, each.reserved_peak,
                                each.allocated_peak_after));
  return taken;
}

/// The module that the calling thread is in, or that its backward pass has reached; None for none.
py::object open_module(const ThreadState& thread, uint32_t epoch) {
  ModuleStack* const modules = thread.modules();
  if (modules == nullptr) return py::none();
  const WatchedModule* module = nullptr;
  if (modules->epoch == epoch) {
    uint64_t latest = 0;
    for (const OpenModules* open : {&modules->calls, &modules->position}) {
      if (open->empty() || (*open)[open->size() - 1].begin < latest) continue;
      latest = (*open)[open->size() - 1].begin;
      module = (*open)[open->size() - 1].module;
    }
  }
  if (module == nullptr) return py::none();
  const std::string name = PhaseTable::instance().name(module->forward);
  PyObject* text =
      PyUnicode_DecodeUTF8(name.data(), static_cast<Py_ssize_t>(name.size()), "surrogatepass");
  if (text == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(text);
}

/// The innermost phase of the calling thread, or else of the one that opened the step, the step's
/// index, and the calling thread's module.
py::tuple open_place() {
  py::object module = py::none();
  int64_t path = -1, step = -1;
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (epoch != 0) {
    const ThreadState* thread = this_thread;
    if (thread->epoch() == epoch) {
      if (thread->innermost_path() != kNoPath) path = thread->innermost_path();
      module = open_module(*thread, epoch);
    }
    const uint64_t open = open_step.load(std::memory_order_relaxed);
    if (open != kNoOpenStep) {
      step = parts().steps().index_of(static_cast<uint32_t>(open));
      const ThreadState* steps = parts().spans.threads().find(static_cast<uint32_t>(open >> 32));
      if (path < 0 && steps != nullptr) {
        std::vector<OpenFrame> frames;
        steps->copy_open(frames);
        if (!frames.empty()) path = frames.back().path;
      }
    }
  }
  return py::make_tuple(path, step, module);
}

}  // namespace

void add_memory_functions(py::module_& module) {
  module.def(
      "start_memory_watch",
      [](const py::object& source, const py::object& take, double budget, const py::object& reset,
         long device) { MemoryWatch::instance().start(source, take, budget, reset, device); },
      "source"_a, "take"_a, py::kw_only(), "budget"_a, "reset"_a = py::none(), "device"_a = -1);
  module.def(
      "hook_allocator_peaks",
      [](const py::tuple& reads, const py::tuple& resets) {
        return AllocatorPeaks::instance().hook(reads.ptr(), resets.ptr(), MemoryWatch::instance());
      },
      "reads"_a, "resets"_a);
  module.def("stop_memory_watch", [] { MemoryWatch::instance().stop(); });
  module.def("take_memory_readings", &take_readings);
  module.def("lost_memory_readings", [] { return MemoryWatch::instance().lost(); });
  module.def("contended_peak_resets", [] { return MemoryWatch::instance().contended_resets(); });
  module.def("open_place", &open_place);
}

}  // namespace pig
