// SPDX-License-Identifier: Apache-2.0
#include "python/phase_registry.h"

#include <pybind11/pybind11.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "hot/phase_table.h"
#include "python/python_error.h"
#include "python/python_hooks.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

constexpr Py_ssize_t kLongestName = 256;

PyObject* phases_by_name = nullptr;  // dict: str -> Phase
// What names share that can't have a handle of their own.
Phase* too_many_names = nullptr;
Phase* no_memory = nullptr;
bool too_many_names_tolerated = false;
std::atomic<uint64_t> cut_names{0};

/// Makes the handle of a new name. Borrowed.
Phase* make_phase(PyObject* name) {
  if (PyUnicode_GET_LENGTH(name) == 0) {
    PyErr_SetString(python_hooks.phase_name_error, "a phase name must not be empty");
    return nullptr;
  }
  if (PhaseTable::instance().is_full()) {
    const bool recording = count_drop(Drop::kNames);
    // A loop that went on with too many names while it was recorded goes on afterwards too.
    too_many_names_tolerated = too_many_names_tolerated || recording;
    if (too_many_names_tolerated) return too_many_names;
    PyErr_Format(python_hooks.phase_name_error,
                 "more than %u different phase names, the next is %R; if names contain a number "
                 "(f\"step {i}\"), leave it out: every span already knows its step",
                 PhaseTable::kCapacity, name);
    return nullptr;
  }
  std::string utf8;
  if (!encode_name(name, utf8)) return nullptr;
  Phase* phase = new_phase(name, PhaseTable::kNoMemory, utf8);
  if (phase == nullptr) return nullptr;
  PyObject* const object = reinterpret_cast<PyObject*>(phase);
  const int error = PyDict_SetItem(phases_by_name, name, object);
  Py_DECREF(object);  // the dict has it
  if (error != 0) return nullptr;
  // Last, as there are only so many ids, and a name for which memory is short is tried again.
  const auto id = with_memory(std::optional<uint32_t>(),
                              [&] { return PhaseTable::instance().add(std::move(utf8)); });
  if (id) {
    phase->id = *id;
    return phase;
  }
  if (PyDict_DelItem(phases_by_name, name) != 0) PyErr_Clear();
  return no_memory;
}

bool is_shared(const Phase* phase) { return phase->id >= PhaseTable::kCapacity; }

/// Borrowed; nullptr with a Python error set.
Phase* find_or_make(PyObject* name) {
  // Names are often made in the loop, from what only the training knows: a long one ends no
  // training.
  const bool is_cut = PyUnicode_GET_LENGTH(name) > kLongestName;
  // Subclasses of str may compare as they like: only their text counts.
  const auto text = py::reinterpret_steal<py::object>(
      is_cut ? PyUnicode_Substring(name, 0, kLongestName) : PyUnicode_FromObject(name));
  if (!text) return nullptr;
  PyObject* const found = PyDict_GetItemWithError(phases_by_name, text.ptr());
  if (found != nullptr) return reinterpret_cast<Phase*>(found);
  Phase* const phase = PyErr_Occurred() == nullptr ? make_phase(text.ptr()) : nullptr;
  if (phase != nullptr && !is_shared(phase) && is_cut) {
    cut_names.fetch_add(1, std::memory_order_relaxed);
    count_drop(Drop::kLongNames);
  }
  return phase;
}

/// A handle that names share.
Phase* new_shared_phase(uint32_t id) {
  const std::string name = PhaseTable::instance().name(id);
  PyObject* text = PyUnicode_FromString(name.c_str());
  Phase* phase = text != nullptr ? new_phase(text, id, name) : nullptr;
  Py_XDECREF(text);
  return phase;
}

}  // namespace

bool encode_name(PyObject* name, std::string& utf8) {
  const auto bytes =
      py::reinterpret_steal<py::object>(PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass"));
  if (!bytes) return false;
  utf8.assign(PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr())));
  return true;
}

Phase* find_phase(const char* name) {
  PyObject* text = PyUnicode_FromString(name);
  if (text == nullptr) return drop_memory_error() ? no_memory : nullptr;
  Phase* phase = find_phase(text);
  Py_DECREF(text);
  return phase;
}

Phase* find_phase(PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "a phase name must be a str, got %.200s: %.64R",
                 Py_TYPE(name)->tp_name, name);
    return nullptr;
  }
  return object_or([name] { return find_or_make(name); }, [] { return no_memory; });
}

uint64_t cut_name_count() { return cut_names.load(std::memory_order_relaxed); }

void tolerate_too_many_names() { too_many_names_tolerated = true; }

#ifndef Py_GIL_DISABLED

PhaseCacheEntry phase_cache[kPhaseCacheEntries];

Phase* find_phase_for(PyObject* name, PhaseCacheEntry& entry) {
  Phase* phase = find_phase(name);
  if (phase == nullptr || is_shared(phase) || !PyUnicode_CheckExact(name)) return phase;
  PyObject* evicted = entry.name;
  entry = {Py_NewRef(name), phase};
  Py_XDECREF(evicted);
  return phase;
}

#endif

bool ready_phase_registry() {
  phases_by_name = PyDict_New();
  too_many_names = new_shared_phase(PhaseTable::kTooManyNames);
  no_memory = new_shared_phase(PhaseTable::kNoMemory);
  return phases_by_name != nullptr && too_many_names != nullptr && no_memory != nullptr;
}

}  // namespace pig
