// SPDX-License-Identifier: Apache-2.0
//
// Observes the calls of a model's modules, and puts the marks on autograd's nodes that show its
// backward pass (record/module_times.h).
//
// A mark is a hook of the node, as tensors have: it is called before the node. To make one by
// `register_prehook` runs Python code each time. So there are two tensors for each module, which
// exist only for their dictionary of hooks, and `_register_hook_dict` puts that on a node.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "hooks/call_observer.h"

namespace pig {

/// Called with each module that is called while no watched one is, until it returns True for it;
/// None: nothing is. An error of its own is reported as unraisable.
void set_root_function(PyObject* function);

/// A module's calls are observed from now on. `parent` is the number of the innermost watched
/// module around it, or -1. Returns its number, or -1 with a Python error set. `enter` and `leave`
/// are the tensors whose hooks are its marks; they can be set later.
int64_t watch_module(PyObject* module, PyObject* name, int64_t parent);
bool set_module_marks(int64_t number, PyObject* enter, PyObject* leave);
/// The function that a mark calls; null with a Python error set.
pybind11::object new_module_mark(int64_t number, bool enters);
/// It is no longer observed; marks that are on nodes do nothing.
void unwatch_module(int64_t number);
/// Whether it was called while a recording was active, timed or not.
bool was_module_called(int64_t number);

CallObserver& watched_call();           ///< `Module.__call__`
CallObserver& watched_backward_pass();  ///< `run_backward` of autograd's engine

}  // namespace pig
