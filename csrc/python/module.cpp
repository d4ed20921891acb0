// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <pybind11/pybind11.h>

#include "base/throwing.h"
#include "base/ticks.h"
#include "cuda/device_timing.h"
#include "hot/nvtx_range.h"
#include "metrics/kernel_store.h"
#include "python/bindings.h"
#include "python/caller.h"
#include "python/open_step.h"
#include "python/phase_registry.h"
#include "python/phase_type.h"
#include "python/python_hooks.h"
#include "python/python_type.h"
#include "python/stack_sampler.h"
#include "python/stall_answer.h"
#include "python/step_iterator.h"
#include "record/recorder.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

// One recording per process: a second interpreter would record into the first one's.
constexpr const char* kRefusal =
    "pyinstrument_gpu records only the main interpreter, and this is a subinterpreter";

bool is_main_interpreter() { return PyInterpreterState_Get() == PyInterpreterState_Main(); }

}  // namespace
}  // namespace pig

PYBIND11_MODULE(_C_main_interpreter, module, py::mod_gil_not_used()) {
  using namespace pig;
  if (!is_main_interpreter()) throw py::import_error(kRefusal);
  module.doc() = "The native side of pyinstrument_gpu. Its face is described in _C.pyi.";
  may_throw();  // the main thread may, for good
  start_nvtx(current_thread_name);
  if (!ready_phase_type() || !ready_phase_registry() || !ready_phase_blocks() ||
      !ready_open_step() || !ready_step_iterator() || !ready_type(step_block_type_object) ||
      PyModule_AddFunctions(module.ptr(), frame_functions) != 0 ||
      PyModule_AddFunctions(module.ptr(), step_iterator_functions) != 0)
    throw py::error_already_set();
  module.attr("Phase") = py::handle(reinterpret_cast<PyObject*>(&phase_type_object));
  module.attr("Scope") = py::handle(reinterpret_cast<PyObject*>(&scope_type_object));
  module.attr("Frame") = py::handle(reinterpret_cast<PyObject*>(&frame_type_object));
  module.attr("StepBlock") = py::handle(reinterpret_cast<PyObject*>(&step_block_type_object));
  module.attr("gpu_phase") = py::reinterpret_steal<py::object>(new_gpu_phase(module.ptr()));

  add_hook_functions(module);
  add_auto_functions(module);
  add_recording_functions(module);
  add_graph_functions(module);
  add_memory_functions(module);
  add_cause_functions(module);
  add_host_functions(module);
  add_stack_functions(module);
  add_module_functions(module);
  add_metric_functions(module);
  add_compiled_graph_functions(module);

  /// For test-only modules: replaces the clock of the recordings that start from now on.
  module.attr("_tick_injector") = py::capsule(reinterpret_cast<void*>(&inject_tick_function),
                                              "pyinstrument_gpu.native._C._tick_injector");

  /// For test-only modules: forgets all devices, their kernels, and that PyTorch initialised CUDA.
  constexpr void (*detach)() = [] {
    cuda::DeviceTiming::detach();
    metrics::KernelStore::instance().forget();
  };
  module.attr("_device_detacher") =
      py::capsule(reinterpret_cast<void*>(detach), "pyinstrument_gpu.native._C._device_detacher");

  tell_tasks();
  set_thread_name_function(current_thread_name);
  notice_function = [](Notice notice) {
    if (notice == Notice::kStall) return answer_stall();
    schedule_hook(notice);
  };
  Recorder::install_fork_handler();
  pthread_atfork(nullptr, nullptr, forget_stall_answers_in_child);
  pthread_atfork(nullptr, nullptr, forget_stack_sampler_in_child);
}

// Asked here too, before pybind11 does anything: up to Python 3.11 its initialisation in a second
// interpreter waits forever. (From 3.13 on this function runs in the main one, and only the
// module's body in the second.)
extern "C" PYBIND11_EXPORT PyObject* PyInit__C() {
  if (pig::is_main_interpreter()) return PyInit__C_main_interpreter();
  PyErr_SetString(PyExc_ImportError, pig::kRefusal);
  return nullptr;
}
