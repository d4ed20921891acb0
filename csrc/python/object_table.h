// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace pig {

/// Something known of Python objects, which it doesn't keep alive. Objects are told apart by their
/// identity, whatever their `__eq__` says. With the GIL.
template <typename Value>
class ObjectTable {
 public:
  /// What is known of an object, or nullptr. Valid until the next `add`.
  Value* find(PyObject* object) {
    const auto found = entries_.find(object);
    return found != entries_.end() && is_of(found->second, object) ? &found->second.value : nullptr;
  }

  /// A new entry, which replaces one of the same object. nullptr, with no error set, where the
  /// object can't be weakly referenced. Throws bad_alloc.
  Value* add(PyObject* object, Value value) {
    if (entries_.size() >= room_) remove_dead();
    PyObject* reference = PyWeakref_NewRef(object, nullptr);
    if (reference == nullptr) {
      PyErr_Clear();
      return nullptr;
    }
    try {
      Entry& entry = entries_[object];
      Py_XDECREF(entry.reference);
      entry = {reference, value};
      return &entry.value;
    } catch (...) {
      Py_DECREF(reference);
      throw;
    }
  }

  /// How many of its objects exist and fit a condition.
  template <typename Condition>
  size_t count(Condition condition) const {
    size_t result = 0;
    for (const auto& [object, entry] : entries_)
      if (is_of(entry, object) && condition(entry.value)) ++result;
    return result;
  }

  /// Calls a function, which runs no Python code, with each object that exists and its value.
  template <typename Function>
  void for_each(Function function) const {
    for (const auto& [object, entry] : entries_)
      if (is_of(entry, object)) function(object, entry.value);
  }

  bool empty() const { return entries_.empty(); }

  void clear() {
    for (const auto& [object, entry] : entries_) Py_DECREF(entry.reference);
    entries_.clear();
  }

 private:
  struct Entry {
    PyObject* reference = nullptr;
    Value value{};
  };

  /// False where it has gone, and another object may have its address.
  static bool is_of(const Entry& entry, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject* referent = nullptr;
    if (PyWeakref_GetRef(entry.reference, &referent) < 0) PyErr_Clear();
    Py_XDECREF(referent);  // for `object`, its owner's reference stays
    return referent == object;
#else
    return PyWeakref_GET_OBJECT(entry.reference) == object;
#endif
  }

  void remove_dead() {
    for (auto entry = entries_.begin(); entry != entries_.end();) {
      if (is_of(entry->second, entry->first)) {
        ++entry;
      } else {
        Py_DECREF(entry->second.reference);
        entry = entries_.erase(entry);
      }
    }
    room_ = kRoom + 2 * entries_.size();
  }

  static constexpr size_t kRoom = 16;
  std::unordered_map<PyObject*, Entry> entries_;
  size_t room_ = kRoom;
};

}  // namespace pig
