// SPDX-License-Identifier: Apache-2.0
#include "python/step_iterator.h"

#include <limits>
#include <new>
#include <utility>

#include "python/batch_readings.h"
#include "python/open_step.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "python/python_error.h"
#include "python/python_type.h"

namespace pig {

thread_local bool is_timing_data = false;

namespace {

const Phase* data_phase = nullptr;

struct StepIterator {
  PyObject_HEAD
  PyObject* iterable;  ///< until it has given its iterator
  PyObject* iterator;
  PyObject* samples;  ///< (item) -> float, or null: `samples_per_item`
  PyObject* drawn;    ///< a list of one number: the items drawn for steps that are recorded
  double samples_per_item;
  Py_ssize_t accumulate;
  Py_ssize_t items;  ///< in the step that is open
  // Asked of the iterator where a tool shows ranges: after its last item another one is asked for,
  // and what is not a step of the run must not be one in the tool either.
  Py_ssize_t length;   ///< how many items it says that it has, -1 unknown
  Py_ssize_t given;    ///< how many it has given
  bool reads_batches;  ///< whether to look at items for what `samples` does not tell
  bool is_running;
  bool is_finished;
  OpenStep step;
};

StepIterator* iterator_of(PyObject* object) { return reinterpret_cast<StepIterator*>(object); }

void close_step(StepIterator* self) {
  if (!self->step.is_open()) return;
  if (self->items != 0) {
    self->step.end(false);
  } else {
    self->step.drop();
  }
}

void ask_length(StepIterator* self) {
  self->length = PyObject_LengthHint(self->iterator, -1);
  if (self->length < 0) PyErr_Clear();
}

/// Waits for the next item, as the phase "data". What there is none of, takes no time.
PyObject* draw(StepIterator* self, bool with_range) {
  if (with_range) nvtx_push(data_phase->nvtx);
  const uint64_t frame = begin_token(*data_phase);
  const bool was_timing_data = std::exchange(is_timing_data, true);
  // Starting the loader's workers is waiting for the first item.
  if (self->iterator == nullptr) {
    self->iterator = PyObject_GetIter(self->iterable);
    if (self->iterator != nullptr) {
      Py_CLEAR(self->iterable);
      if (nvtx_active) ask_length(self);
    }
  }
  PyObject* item =
      self->iterator != nullptr ? Py_TYPE(self->iterator)->tp_iternext(self->iterator) : nullptr;
  is_timing_data = was_timing_data;
  const bool is_exhausted = item == nullptr && (PyErr_Occurred() == nullptr ||
                                                PyErr_ExceptionMatches(PyExc_StopIteration) != 0);
  if (with_range) nvtx_pop(data_phase->nvtx);
  end_token(frame, is_exhausted ? Closing::kCancel : Closing::kEnd);
  if (is_exhausted) PyErr_Clear();
  return item;
}

/// Adds an item to the open step. False with a Python error set.
bool add_item(StepIterator* self, PyObject* item) {
  double samples = self->samples_per_item;
  if (self->samples != nullptr) {
    PyObject* number = PyObject_CallOneArg(self->samples, item);
    samples = number != nullptr ? PyFloat_AsDouble(number) : 0;
    Py_XDECREF(number);
    if (PyErr_Occurred() != nullptr) {
      if (!drop_memory_error()) return false;
      samples = std::numeric_limits<double>::quiet_NaN();
    }
  }
  self->step.add_item(samples);
  if (self->step.is_counted()) {
    if (self->reads_batches) read_batch(item);
    const long long before = PyLong_AsLongLong(PyList_GET_ITEM(self->drawn, 0));
    PyObject* now = PyLong_FromLongLong(before + 1);
    if (now != nullptr ? PyList_SetItem(self->drawn, 0, now) != 0 : !drop_memory_error())
      return false;
  }
  ++self->items;
  return true;
}

PyObject* next_item(StepIterator* self) {
  if (self->items == self->accumulate) {
    self->step.end(true);
    self->items = 0;
  }
  const bool may_be_there = self->given != self->length;
  if (self->items == 0 && !self->step.begin(may_be_there)) return nullptr;
  PyObject* item = draw(self, may_be_there);
  if (item != nullptr) {
    ++self->given;
    self->step.show();
  }
  if (item != nullptr && !add_item(self, item)) Py_CLEAR(item);
  return item;
}

/// False with a Python error set.
bool is_idle(StepIterator* self) {
  if (!self->is_running) return true;
  PyErr_SetString(PyExc_ValueError, "this loop over gpu_steps is already waiting for an item");
  return false;
}

/// Letting go of the loader may run any code.
void finish(StepIterator* self) {
  self->is_finished = true;
  close_step(self);
  Py_CLEAR(self->iterable);
  Py_CLEAR(self->iterator);
}

PyObject* iterator_next(PyObject* object) {
  StepIterator* self = iterator_of(object);
  if (!is_idle(self)) return nullptr;
  if (self->is_finished) return nullptr;
  self->is_running = true;
  PyObject* item = next_item(self);
  self->is_running = false;
  if (item == nullptr) {
    const ErrorAside aside;
    finish(self);
  }
  return item;
}

PyObject* iterator_close(PyObject* object, PyObject*) {
  StepIterator* self = iterator_of(object);
  if (!is_idle(self)) return nullptr;
  finish(self);
  Py_RETURN_NONE;
}

PyMethodDef iterator_methods[] = {
    {"close", iterator_close, METH_NOARGS, "close()\n--\n\nEnds the loop, as for a generator."},
    {nullptr, nullptr, 0, nullptr}};

int iterator_traverse(PyObject* object, visitproc visit, void* arg) {
  StepIterator* self = iterator_of(object);
  Py_VISIT(self->iterable);
  Py_VISIT(self->iterator);
  Py_VISIT(self->samples);
  Py_VISIT(self->drawn);
  return 0;
}

int iterator_clear(PyObject* object) {
  StepIterator* self = iterator_of(object);
  Py_CLEAR(self->iterable);
  Py_CLEAR(self->iterator);
  Py_CLEAR(self->samples);
  self->is_finished = true;  // without `drawn` nothing more can be drawn
  return 0;
}

void iterator_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  {
    const ErrorAside aside;
    close_step(iterator_of(object));
    iterator_clear(object);
  }
  Py_CLEAR(iterator_of(object)->drawn);
  iterator_of(object)->step.~OpenStep();
  PyObject_GC_Del(object);
}

PyTypeObject step_iterator_type =
    static_type<StepIterator>("pyinstrument_gpu.native._C.StepIterator", [](PyTypeObject& type) {
      type.tp_flags |= Py_TPFLAGS_HAVE_GC;
      type.tp_iter = PyObject_SelfIter;
      type.tp_iternext = iterator_next;
      type.tp_methods = iterator_methods;
      type.tp_traverse = iterator_traverse;
      type.tp_clear = iterator_clear;
      type.tp_dealloc = iterator_dealloc;
    });

PyObject* iterate_steps(PyObject*, PyObject* arguments) {
  PyObject *iterable, *samples, *drawn;
  Py_ssize_t accumulate;
  int reads_batches;
  if (PyArg_ParseTuple(arguments, "OnOO!p", &iterable, &accumulate, &samples, &PyList_Type, &drawn,
                       &reads_batches) == 0)
    return nullptr;
  double samples_per_item = std::numeric_limits<double>::quiet_NaN();
  const bool asks = PyCallable_Check(samples) != 0;
  if (!asks) {
    samples_per_item = PyFloat_AsDouble(samples);
    if (PyErr_Occurred() != nullptr) return nullptr;
  }
  StepIterator* self = PyObject_GC_New(StepIterator, &step_iterator_type);
  if (self == nullptr) return drop_memory_error() ? PyObject_GetIter(iterable) : nullptr;
  self->iterable = Py_NewRef(iterable);
  self->iterator = nullptr;
  self->samples = asks ? Py_NewRef(samples) : nullptr;
  self->drawn = Py_NewRef(drawn);
  self->samples_per_item = samples_per_item;
  self->accumulate = accumulate;
  self->reads_batches = reads_batches != 0;
  self->items = 0;
  self->length = -1;
  self->given = 0;
  self->is_running = self->is_finished = false;
  new (&self->step) OpenStep;
  PyObject_GC_Track(self);
  return reinterpret_cast<PyObject*>(self);
}

}  // namespace

bool ready_step_iterator() {
  data_phase = find_phase("data");
  return data_phase != nullptr && PyType_Ready(&step_iterator_type) == 0;
}

PyMethodDef step_iterator_functions[] = {
    {"iterate_steps", iterate_steps, METH_VARARGS,
     "iterate_steps(iterable, accumulate, samples, drawn, reads_batches, /)\n--\n\n"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace pig
