// SPDX-License-Identifier: Apache-2.0
//
// What is read of each batch, one row for each number. Its name is followed by its unit, unless it
// counts what it names. A step has the sum over its batches, as the reading `step/NAME` of the run,
// which everything that shows or exports metrics shows and exports.
#include "python/batch_readings.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "hooks/tensor_inspector.h"
#include "hot/active_recording.h"
#include "record/parts.h"

namespace pig {
namespace {

struct BatchReading {
  const char* name;
  double (*of)(PyObject* batch);  ///< NaN: not known
  // The last steps of which it was known for a batch, and was not.
  std::atomic<uint64_t> known_in = 0;
  std::atomic<uint64_t> unknown_in = 0;
};

/// So many elements are read in some ten microseconds.
constexpr int64_t kMostRead = 100'000;

/// A borrowed reference, or null.
PyObject* entry_of(PyObject* dictionary, PyObject* name) {
  PyObject* entry = PyDict_GetItemWithError(dictionary, name);
  if (entry == nullptr) PyErr_Clear();
  return entry;
}

/// The fetchers of Lightning give a batch, its number and that of its loader. A borrowed reference.
PyObject* batch_of(PyObject* item) {
  const bool is_numbered = PyTuple_Check(item) && PyTuple_GET_SIZE(item) == 3 &&
                           PyLong_Check(PyTuple_GET_ITEM(item, 1)) &&
                           PyLong_Check(PyTuple_GET_ITEM(item, 2));
  return is_numbered ? PyTuple_GET_ITEM(item, 0) : item;
}

/// The dictionary that a batch is, or that it keeps as its attribute `data`, as a `UserDict` does:
/// tokenizers make such batches. A new reference, or null.
PyObject* fields_of(PyObject* batch) {
  static PyObject* const name = PyUnicode_InternFromString("data");
  if (PyDict_Check(batch)) return Py_NewRef(batch);
  if (PyMapping_Check(batch) == 0 || PyList_Check(batch) || PyTuple_Check(batch) ||
      tensor_inspector.is_tensor(batch))
    return nullptr;
  PyObject* attributes = PyObject_GenericGetDict(batch, nullptr);
  if (attributes == nullptr) PyErr_Clear();
  PyObject* data = attributes != nullptr ? entry_of(attributes, name) : nullptr;
  PyObject* fields = data != nullptr && PyDict_Check(data) ? Py_NewRef(data) : nullptr;
  Py_XDECREF(attributes);
  return fields;
}

/// The elements of the batch's `input_ids`, padding included.
double tokens_of(PyObject* batch) {
  static PyObject* const name = PyUnicode_InternFromString("input_ids");
  PyObject* fields = fields_of(batch);
  PyObject* ids = fields != nullptr ? entry_of(fields, name) : nullptr;
  int64_t tokens;
  const bool is_known = ids != nullptr && tensor_inspector.is_matrix(ids, tokens);
  Py_XDECREF(fields);
  return is_known ? static_cast<double>(tokens) : NAN;
}

/// Those of them that its `attention_mask` does not mask, which are known where that lies on the
/// host: nothing waits for a device.
double tokens_without_padding_of(PyObject* batch) {
  static PyObject* const name = PyUnicode_InternFromString("attention_mask");
  PyObject* fields = fields_of(batch);
  PyObject* mask = fields != nullptr ? entry_of(fields, name) : nullptr;
  int64_t elements, set;
  const bool is_known = mask != nullptr && tensor_inspector.is_mask(mask, elements, set) &&
                        static_cast<double>(elements) == tokens_of(batch);
  Py_XDECREF(fields);
  return is_known ? static_cast<double>(set) : NAN;
}

/// The first tensor of a batch with more than one dimension, with the elements of each of its rows.
/// A batch is a tensor, or a tuple, list or dictionary of such things. A borrowed reference, or
/// null.
PyObject* rows_of(PyObject* batch, int64_t& rows, int64_t& of_row, int depth = 0) {
  constexpr int kDeepest = 3;
  if (tensor_inspector.has_columns(batch, rows, of_row)) return batch;
  if (depth == kDeepest) return nullptr;
  PyObject* found = nullptr;
  if (PyTuple_Check(batch) || PyList_Check(batch)) {
    for (Py_ssize_t i = 0; found == nullptr && i < PySequence_Fast_GET_SIZE(batch); ++i)
      found = rows_of(PySequence_Fast_GET_ITEM(batch, i), rows, of_row, depth + 1);
    return found;
  }
  PyObject* const fields = fields_of(batch);
  PyObject *name, *field;
  Py_ssize_t position = 0;
  while (found == nullptr && fields != nullptr && PyDict_Next(fields, &position, &name, &field))
    found = rows_of(field, rows, of_row, depth + 1);
  Py_XDECREF(fields);
  return found;
}

/// That tensor, from the first batch on whose samples have another size than those of the first:
/// where all are alike, as images are, there is nothing to read. Null also where tokens say as
/// much.
PyObject* varying_rows_of(PyObject* batch, int64_t& elements) {
  static uint32_t seen_in = 0;
  static int64_t first_size = 0;
  static bool do_vary = false;
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  int64_t rows = 0, of_row = 0;
  PyObject* const tensor = rows_of(batch, rows, of_row);
  if (tensor == nullptr) return nullptr;
  if (seen_in != epoch) {
    seen_in = epoch;
    first_size = of_row;
    do_vary = false;
  }
  do_vary |= of_row != first_size;
  elements = rows * of_row;
  return do_vary && std::isnan(tokens_of(batch)) ? tensor : nullptr;
}

double elements_of(PyObject* batch) {
  int64_t elements = 0;
  return varying_rows_of(batch, elements) != nullptr ? static_cast<double>(elements) : NAN;
}

/// Those of its elements that are not zero, as padding is: of integers on the host.
double elements_without_zeros_of(PyObject* batch) {
  int64_t elements = 0, of_mask = 0, set = 0;
  PyObject* const tensor = varying_rows_of(batch, elements);
  const bool is_known =
      tensor != nullptr && elements <= kMostRead && tensor_inspector.is_mask(tensor, of_mask, set);
  return is_known ? static_cast<double>(set) : NAN;
}

constinit std::array<BatchReading, 4> batch_readings{
    {{"tokens", tokens_of},
     {"tokens_without_padding", tokens_without_padding_of},
     {"batch_elements", elements_of},
     {"batch_elements_without_zeros", elements_without_zeros_of}}};

}  // namespace

void read_batch(PyObject* item) {
  if (parts().is_scratch()) return;
  PyObject* const batch = batch_of(item);
  const uint64_t step = uint64_t{active_epoch.load(std::memory_order_relaxed)} << 32 |
                        static_cast<uint32_t>(open_step.load(std::memory_order_relaxed));
  for (BatchReading& reading : batch_readings) {
    const double value = reading.of(batch);
    const bool is_known = !std::isnan(value);
    // Where it is known of no batch, as in most programs, this costs no lock.
    if (is_known || reading.known_in == step)
      parts().metrics.add_to_step(reading.name, reading.unknown_in == step ? NAN : value);
    (is_known ? reading.known_in : reading.unknown_in).store(step, std::memory_order_relaxed);
  }
}

}  // namespace pig
