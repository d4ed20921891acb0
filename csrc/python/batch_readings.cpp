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

/// The first thing in a batch: the batch itself, the first of a few in a tuple or a list, or the
/// first field. A borrowed reference, or null. A list of many is a list of samples.
PyObject* first_of(PyObject* batch) {
  constexpr Py_ssize_t kMostFields = 4;
  if (PyTuple_Check(batch) || PyList_Check(batch)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(batch);
    return size > 0 && size <= kMostFields ? PySequence_Fast_GET_ITEM(batch, 0) : nullptr;
  }
  if (!PyDict_CheckExact(batch)) return batch;
  PyObject *name, *field = nullptr;
  Py_ssize_t position = 0;
  return PyDict_Next(batch, &position, &name, &field) != 0 ? field : nullptr;
}

/// Of the batch that was read last, as `elements_of` finds both.
double elements_without_padding = NAN;

/// The elements of a batch that is rows of integers, and those of them that are not zeros at the
/// ends of rows, as padding is: from the first batch on whose rows have another length than those
/// of the first. Where all are alike, and where tokens are known, there is nothing to read.
double elements_of(PyObject* batch) {
  static uint32_t seen_in = 0;
  static int64_t first_length = 0;
  static bool do_vary = false;
  elements_without_padding = NAN;
  PyObject* const first = first_of(batch);
  TensorInspector::PaddedRows rows;
  if (first == nullptr || !tensor_inspector.has_integer_rows(first, rows)) return NAN;
  const uint32_t epoch = active_epoch.load(std::memory_order_relaxed);
  if (seen_in != epoch) {
    seen_in = epoch;
    first_length = rows.length;
    do_vary = false;
  }
  do_vary |= rows.length != first_length;
  if (!do_vary || rows.count * rows.length > kMostRead || !std::isnan(tokens_of(batch))) return NAN;
  int64_t full = 0;
  if (tensor_inspector.are_padded(rows, full)) elements_without_padding = static_cast<double>(full);
  return static_cast<double>(rows.count * rows.length);
}

double elements_without_padding_of(PyObject*) { return elements_without_padding; }

constinit std::array<BatchReading, 4> batch_readings{
    {{"tokens", tokens_of},
     {"tokens_without_padding", tokens_without_padding_of},
     {"batch_elements", elements_of},
     {"batch_elements_without_padding", elements_without_padding_of}}};

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
