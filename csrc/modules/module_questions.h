// SPDX-License-Identifier: Apache-2.0
//
// What is asked of torch, at each call of a watched module. So it is asked as directly as can be:
// the getter of an attribute by its descriptor, methods of a node by the C function in the table of
// the node's type, and whether the thread has modes by the function of torch's library that
// Python's own leads to. Where one of these is not found, Python is asked.
#pragma once

#include <Python.h>

#include <cstdint>

namespace pig {

/// References that are kept for good.
struct ModuleQuestions {
  PyObject* grad_fn;        ///< the descriptor of this attribute of tensors
  PyObject* mode_count;     ///< () -> int: modes that see what is asked of a tensor
  PyObject* without_modes;  ///< () -> a context in which they don't
};
extern ModuleQuestions module_questions;

void set_module_questions(const ModuleQuestions& questions);

// All of these clear errors.

/// Whether modes of the program see what is asked of a tensor.
bool modes_hear();

constexpr uint64_t kNoNode = ~uint64_t{0};

/// The node of a tensor, a new reference; nullptr where there is none.
PyObject* node_of(PyObject* tensor);
/// The number of a node; they ascend on each thread. `kNoNode`: not known.
uint64_t number_of(PyObject* node);
/// Has the hooks of a tensor called before a node.
void add_hooks(PyObject* node, PyObject* tensor);

}  // namespace pig
