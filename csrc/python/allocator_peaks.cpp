// SPDX-License-Identifier: Apache-2.0
#include "python/allocator_peaks.h"

#include <optional>

#include "base/throwing.h"
#include "hooks/call_hook.h"

namespace pig {
namespace {

thread_local bool calls_are_ours = false;

/// The number of a device that a hooked function is called with.
std::optional<long> device_of(const ObservedCall& call) {
  if (call.self == nullptr || PyIndex_Check(call.self) == 0) return std::nullopt;
  const Py_ssize_t device = PyNumber_AsSsize_t(call.self, nullptr);
  if (device == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return std::nullopt;
  }
  return static_cast<long>(device);
}

bool is_peak(PyObject* key) {
  return PyUnicode_Check(key) != 0 && PyUnicode_CompareWithASCIIString(key, "peak") == 0;
}

/// Statistics are dictionaries in dictionaries.
enum class Fold {
  newer,  ///< `from` is newer: `into` gets all that it has, but of peaks the larger ones
  show,   ///< `into` gets the larger peaks, and pools that it lacks because they are gone
};

/// False with an error set.
bool fold(PyObject* into, PyObject* from, Fold how, bool is_inner = false) {
  const bool adds = how == Fold::newer || is_inner;
  Py_ssize_t position = 0;
  PyObject *key, *value;
  while (PyDict_Next(from, &position, &key, &value) != 0) {
    PyObject* mine = PyDict_GetItemWithError(into, key);
    if (mine == nullptr && (PyErr_Occurred() != nullptr || !adds)) {
      if (PyErr_Occurred() != nullptr) return false;
      continue;
    }
    if (PyDict_Check(value) == 0) {
      int is_wanted = mine == nullptr || how == Fold::newer ? 1 : 0;
      if (mine != nullptr && is_peak(key)) is_wanted = PyObject_RichCompareBool(value, mine, Py_GT);
      if (is_wanted < 0 || (is_wanted > 0 && PyDict_SetItem(into, key, value) != 0)) return false;
      continue;
    }
    if (mine == nullptr) {
      PyObject* empty = PyDict_New();
      if (empty == nullptr) return false;
      const int set = PyDict_SetItem(into, key, empty);
      Py_DECREF(empty);
      if (set != 0) return false;
      mine = empty;
    }
    if (PyDict_Check(mine) != 0 && !fold(mine, value, how, true)) return false;
  }
  return true;
}

bool observe_all(PyObject* functions, CallObserver& observer) {
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(functions); ++i) {
    if (!observe_call(PyTuple_GET_ITEM(functions, i), ObserverOf::memory, observer)) return false;
  }
  return true;
}

}  // namespace

OwnAllocatorCalls::OwnAllocatorCalls() { calls_are_ours = true; }
OwnAllocatorCalls::~OwnAllocatorCalls() { calls_are_ours = false; }

AllocatorPeaks& AllocatorPeaks::instance() {
  static auto* peaks = new AllocatorPeaks;  // leaked: the hooks stay
  return *peaks;
}

bool AllocatorPeaks::hook(PyObject* reads, PyObject* resets, PeakResetListener& listener) {
  listener_ = &listener;
  return observe_all(resets, resets_) && observe_all(reads, reads_);
}

bool AllocatorPeaks::keep(long device, PyObject* statistics) {
  bool is_kept = false;
  try_allocating([&] {
    PyObject*& kept = kept_[device];
    if (kept == nullptr) kept = PyDict_New();
    is_kept = kept != nullptr && fold(kept, statistics, Fold::newer);
  });
  if (!is_kept) PyErr_Clear();
  return is_kept;
}

Observing AllocatorPeaks::Reads::begins(ObservedCall&) {
  const bool is_seen = !calls_are_ours && !instance().kept_.empty();
  return is_seen ? Observing::begun : Observing::ignored;
}

bool AllocatorPeaks::Reads::ends(ObservedCall& call, PyObject* result) {
  if (result == nullptr || PyDict_Check(result) == 0) return true;
  const std::optional<long> device = device_of(call);
  if (!device) return true;
  const auto& kept = instance().kept_;
  const auto found = kept.find(*device);
  if (found == kept.end() || found->second == nullptr) return true;
  if (!fold(result, found->second, Fold::show)) PyErr_Clear();
  return true;
}

Observing AllocatorPeaks::Resets::begins(ObservedCall& call) {
  if (calls_are_ours) return Observing::ignored;
  const std::optional<long> device = device_of(call);
  if (!device) return Observing::ignored;
  call.token = static_cast<uint64_t>(*device);
  instance().listener_->before_reset(*device);
  return Observing::begun;
}

bool AllocatorPeaks::Resets::ends(ObservedCall& call, PyObject* result) {
  const auto device = static_cast<long>(call.token);
  auto& kept = instance().kept_;
  const auto found = kept.find(device);
  if (result != nullptr && found != kept.end()) {
    Py_XDECREF(found->second);
    kept.erase(found);
  }
  instance().listener_->after_reset(device);
  return true;
}

}  // namespace pig
