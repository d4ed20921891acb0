// SPDX-License-Identifier: Apache-2.0
#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <limits>
#include <new>
#include <utility>

#include "python/bindings.h"
#include "python/error_aside.h"
#include "python/open_step.h"
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
};

StepBlock* block_of(PyObject* object) { return reinterpret_cast<StepBlock*>(object); }

void leave(StepBlock* self, bool complete) {
  EnteredStep* entered = self->innermost;
  if (entered == nullptr) return;
  self->innermost = entered->outer;
  entered->step.end(complete);
  delete entered;
}

PyObject* block_enter(PyObject* object, PyObject*) {
  auto* entered = new (std::nothrow) EnteredStep;
  if (entered == nullptr) return PyErr_NoMemory();
  if (!entered->step.begin()) {
    delete entered;
    return nullptr;
  }
  StepBlock* self = block_of(object);
  entered->step.add_item(self->samples);
  entered->outer = std::exchange(self->innermost, entered);
  return Py_NewRef(object);
}

PyObject* block_exit(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
  if (!check_arguments(static_cast<size_t>(count), nullptr, 3, "__exit__")) return nullptr;
  leave(block_of(object), arguments[0] == Py_None);
  Py_RETURN_NONE;
}

PyObject* block_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (object != nullptr) block_of(object)->samples = std::numeric_limits<double>::quiet_NaN();
  return object;
}

void block_dealloc(PyObject* object) {
  {
    const ErrorAside aside;
    while (block_of(object)->innermost != nullptr) leave(block_of(object), false);
  }
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef block_methods[] = {
    {"__enter__", block_enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(block_exit)),
     METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef block_members[] = {
    {"_samples", T_DOUBLE, offsetof(StepBlock, samples), 0, "NaN: unknown."},
    {nullptr, 0, 0, 0, nullptr}};

}  // namespace

PyTypeObject step_block_type_object = [] {
  PyTypeObject type = blank_type();
  type.tp_name = "pyinstrument_gpu._C.StepBlock";
  type.tp_basicsize = sizeof(StepBlock);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE;
  type.tp_doc = "A context manager that makes its block a step.";
  type.tp_new = block_new;
  type.tp_dealloc = block_dealloc;
  type.tp_methods = block_methods;
  type.tp_members = block_members;
  return type;
}();

}  // namespace pig
