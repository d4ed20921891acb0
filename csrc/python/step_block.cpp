// SPDX-License-Identifier: Apache-2.0
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>

#include "python/bindings.h"
#include "python/open_step.h"
#include "python/python_error.h"
#include "python/python_type.h"

namespace pig {
namespace {

/// More than one where the block is entered within itself.
struct EnteredStep {
  OpenStep step;
  EnteredStep* outer;
};

struct StepBlock {
  PyObject_HEAD
  double samples;
  EnteredStep* innermost;
  uint32_t not_entered;  ///< how many of the innermost ones there was no memory for
};

/// Of the type below: what all blocks share for which there is no memory. Never freed.
extern StepBlock spare_block;

StepBlock* block_of(PyObject* object) { return reinterpret_cast<StepBlock*>(object); }

void leave(StepBlock* self, bool complete) {
  EnteredStep* entered = self->innermost;
  if (entered == nullptr) return;
  self->innermost = entered->outer;
  entered->step.end(complete);
  delete entered;
}

PyObject* block_enter(PyObject* object, PyObject*) {
  StepBlock* self = block_of(object);
  auto* const entered = with_memory<EnteredStep*>(nullptr, [] { return new EnteredStep; });
  if (entered == nullptr) {
    ++self->not_entered;
    return Py_NewRef(object);
  }
  if (!entered->step.begin()) {
    delete entered;
    return nullptr;
  }
  entered->step.add_item(self->samples);
  entered->outer = std::exchange(self->innermost, entered);
  return Py_NewRef(object);
}

PyObject* block_exit(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 3, "__exit__")) return nullptr;
  StepBlock* self = block_of(object);
  if (self->not_entered > 0) {
    --self->not_entered;
  } else {
    leave(self, arguments[0] == Py_None);
  }
  Py_RETURN_NONE;
}

PyObject* block_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (object == nullptr)
    return drop_memory_error() ? Py_NewRef(reinterpret_cast<PyObject*>(&spare_block)) : nullptr;
  block_of(object)->samples = std::numeric_limits<double>::quiet_NaN();
  return object;
}

void block_dealloc(PyObject* object) {
  {
    const ErrorAside aside;
    while (block_of(object)->innermost != nullptr) leave(block_of(object), false);
  }
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef block_methods[] = {{"__enter__", block_enter, METH_NOARGS, nullptr},
                               {"__exit__", as_method(block_exit), METH_FASTCALL, nullptr},
                               {nullptr, nullptr, 0, nullptr}};

PyMemberDef block_members[] = {
    {"_samples", T_DOUBLE, offsetof(StepBlock, samples), 0, "NaN: unknown."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyTypeObject step_block_type_object =
    static_type<StepBlock>("pyinstrument_gpu.native._C.StepBlock", [](PyTypeObject& type) {
      type.tp_flags |= Py_TPFLAGS_BASETYPE;
      type.tp_doc = "A context manager that makes its block a step.";
      type.tp_new = block_new;
      type.tp_dealloc = block_dealloc;
      type.tp_methods = block_methods;
      type.tp_members = block_members;
    });

namespace {

StepBlock spare_block = {PyObject_HEAD_INIT(&step_block_type_object)
                             std::numeric_limits<double>::quiet_NaN(),
                         nullptr, 0};

}  // namespace
}  // namespace pig
