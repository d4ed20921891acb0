// SPDX-License-Identifier: Apache-2.0
#include "python/phase_registry.h"

#include <atomic>
#include <optional>
#include <string>

#include "hot/phase_table.h"
#include "python/python_hooks.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

constexpr Py_ssize_t kLongestName = 256;

PyObject* phases_by_name = nullptr;  // dict: str -> Phase
Phase* too_many_names = nullptr;
bool too_many_names_tolerated = false;
std::atomic<uint64_t> cut_names{0};

/// Makes the handle of a new name. Borrowed.
Phase* make_phase(PyObject* name) {
  if (PyUnicode_GET_LENGTH(name) == 0) {
    PyErr_SetString(python_hooks.phase_name_error, "a phase name must not be empty");
    return nullptr;
  }
  std::string utf8;
  if (!encode_name(name, utf8)) return nullptr;
  const std::optional<uint32_t> id = PhaseTable::instance().add(utf8);
  if (!id) {
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
  Phase* phase = new_phase(name, *id, utf8);
  if (phase == nullptr) return nullptr;
  if (PyDict_SetItem(phases_by_name, name, reinterpret_cast<PyObject*>(phase)) != 0) return nullptr;
  return phase;
}

}  // namespace

bool encode_name(PyObject* name, std::string& utf8) {
  PyObject* bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
  if (bytes == nullptr) return false;
  utf8.assign(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  return true;
}

Phase* find_phase(const char* name) {
  PyObject* text = PyUnicode_FromString(name);
  Phase* phase = text != nullptr ? find_phase(text) : nullptr;
  Py_XDECREF(text);
  return phase;
}

Phase* find_phase(PyObject* name) {
  if (!PyUnicode_Check(name)) {
    PyErr_Format(PyExc_TypeError, "a phase name must be a str, got %.200s: %.64R",
                 Py_TYPE(name)->tp_name, name);
    return nullptr;
  }
  // Names are often made in the loop, from what only the training knows: a long one ends no
  // training.
  const bool is_cut = PyUnicode_GET_LENGTH(name) > kLongestName;
  // Subclasses of str may compare as they like: only their text counts.
  PyObject* text = is_cut ? PyUnicode_Substring(name, 0, kLongestName) : PyUnicode_FromObject(name);
  if (text == nullptr) return nullptr;
  PyObject* found = PyDict_GetItemWithError(phases_by_name, text);
  auto* phase = reinterpret_cast<Phase*>(found);
  if (phase == nullptr && PyErr_Occurred() == nullptr) {
    phase = make_phase(text);
    if (phase != nullptr && phase != too_many_names && is_cut) {
      cut_names.fetch_add(1, std::memory_order_relaxed);
      count_drop(Drop::kLongNames);
    }
  }
  Py_DECREF(text);
  return phase;
}

uint64_t cut_name_count() { return cut_names.load(std::memory_order_relaxed); }

void tolerate_too_many_names() { too_many_names_tolerated = true; }

#ifndef Py_GIL_DISABLED

PhaseCacheEntry phase_cache[kPhaseCacheEntries];

Phase* find_phase_for(PyObject* name, PhaseCacheEntry& entry) {
  Phase* phase = find_phase(name);
  if (phase == nullptr || phase == too_many_names || !PyUnicode_CheckExact(name)) return phase;
  PyObject* evicted = entry.name;
  entry = {Py_NewRef(name), phase};
  Py_XDECREF(evicted);
  return phase;
}

#endif

bool ready_phase_registry() {
  phases_by_name = PyDict_New();
  PyObject* overflow_name = PyUnicode_FromString("(too many names)");
  if (phases_by_name == nullptr || overflow_name == nullptr) return false;
  too_many_names = new_phase(overflow_name, PhaseTable::kTooManyNames, "(too many names)");
  Py_DECREF(overflow_name);
  return too_many_names != nullptr;
}

}  // namespace pig
