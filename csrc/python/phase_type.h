// SPDX-License-Identifier: Apache-2.0
//
// The handle of a phase, written against the C API: a `with gpu_phase("x"):` costs one lookup and
// two calls, none of which may allocate.
//
// There is one Phase per name, made once and kept forever (phase_registry.h). What `with` calls is
// made with it (python_type.h).
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>

#include "hot/nvtx_range.h"

namespace pig {

struct PhaseMethod;

struct Phase {
  PyObject_HEAD
  uint32_t id;
  PhaseMethod* enter;
  PhaseMethod* exit;
  PyObject* name;
  NvtxName nvtx;
};

/// Makes the handle types ready. Returns false with a Python error set.
bool ready_phase_type();
PIG_HOT extern PyTypeObject phase_type_object;

/// A new handle, or nullptr with a Python error set. `utf8` is the name as run files have it.
Phase* new_phase(PyObject* name, uint32_t id, const std::string& utf8);

/// Sets a TypeError and returns nullptr.
Phase* not_a_phase(PyObject* argument);

/// The argument as a Phase, borrowed, or nullptr with a TypeError set.
inline Phase* phase_argument(PyObject* argument) {
  if (PIG_LIKELY(Py_TYPE(argument) == &phase_type_object))
    return reinterpret_cast<Phase*>(argument);
  return not_a_phase(argument);
}

}  // namespace pig
