// SPDX-License-Identifier: Apache-2.0
//
// What each source of the binding adds to the module. Functions that return a bool or a pointer set
// a Python error and return false or nullptr when they fail.
#pragma once

#include <pybind11/pybind11.h>

namespace pig {

/// start, stop, flush and what else controls a recording.
void add_recording_functions(pybind11::module_& module);
/// step_begin and its like, for the loops of steps.
void add_step_functions(pybind11::module_& module);
/// With which Python records waits.
void add_sync_functions(pybind11::module_& module);
/// MetricAccumulator and what belongs to it.
void add_metric_functions(pybind11::module_& module);
/// frame_begin, frame_end and frame_cancel, for decorators and steps.
bool add_frame_functions(PyObject* module);
/// begin_activities, in_activity and set_in_activity, for automatic phases.
bool add_activity_functions(PyObject* module);

/// `gpu_phase`. Once per process.
PyObject* new_gpu_phase(PyObject* module);

/// Makes the type of `gpu_phase.scope` ready.
bool ready_scope_type();
PyTypeObject* scope_type();
/// The function `gpu_phase.scope` of the module with this name.
PyObject* new_scope_function(PyObject* module_name);

}  // namespace pig
