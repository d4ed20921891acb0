// SPDX-License-Identifier: Apache-2.0
//
// What each source of the binding adds to the module.
#pragma once

#include <pybind11/pybind11.h>

namespace pig {

/// start, stop, flush and what else controls a recording.
void add_recording_functions(pybind11::module_& module);
/// Hooks of calls of torch, and waits for a device.
void add_hook_functions(pybind11::module_& module);
/// Automatic phases and steps.
void add_auto_functions(pybind11::module_& module);
/// Captures and replays of CUDA graphs.
void add_graph_functions(pybind11::module_& module);
void add_memory_functions(pybind11::module_& module);
/// What may make steps slow: collections, and what Python tells.
void add_cause_functions(pybind11::module_& module);
/// What the threads of steps use of the machine, and wait for.
void add_host_functions(pybind11::module_& module);
/// Times of modules.
void add_module_functions(pybind11::module_& module);
/// Calls of compiled graphs.
void add_compiled_graph_functions(pybind11::module_& module);
void add_metric_functions(pybind11::module_& module);
/// `gpu_phase`, or nullptr with a Python error set. Once per process.
PyObject* new_gpu_phase(PyObject* module);

/// The base of `gpu_step`: a `with` block that is one step.
extern PyTypeObject step_block_type_object;

/// What `gpu_phase.scope` returns, and the function itself; and `frame(phase)`, for decorators.
extern PyTypeObject scope_type_object;
extern PyMethodDef scope_definition;
extern PyTypeObject frame_type_object;
extern PyMethodDef frame_functions[];
/// Returns false with a Python error set.
bool ready_phase_blocks();

}  // namespace pig
