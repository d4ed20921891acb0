// SPDX-License-Identifier: Apache-2.0
#include "hooks/call_hook.h"

#include <cstddef>
#include <iterator>
#include <utility>

namespace pig {
namespace {

// All that were ever hooked. With the GIL.
HookedCall* newest = nullptr;

/// That of a function, which is new or was hooked before; nullptr where it can't be hooked.
HookedCall* hooked_call_of(PyObject* function) {
#ifdef Py_GIL_DISABLED
  return nullptr;  // other threads may be reading what is replaced
#endif
  const bool is_method = Py_IS_TYPE(function, &PyMethodDescr_Type);
  const void* const what = is_method ? reinterpret_cast<PyMethodDescrObject*>(function)->d_method
                                     : static_cast<const void*>(function);
  for (HookedCall* each = newest; each != nullptr; each = each->next)
    if (each->what == what) return each;
  HookedCall* const made = is_method ? new_hooked_method(function) : new_hooked_function(function);
  if (made == nullptr) return nullptr;
  Py_INCREF(function);  // for good
  made->what = what;
  made->next = std::exchange(newest, made);
  return made;
}

void take_back_if_unused(HookedCall& hooked) {
  if (hooked.observers.empty() && hooked.is_installed()) hooked.take_back();
}

}  // namespace

bool CallListeners::add(CallObservers& observers, PyObject* enter, PyObject* leave,
                        QuickCheck quick_check) {
  for (size_t i = 0; i < std::size(listeners_); ++i) {
    if (observers.of(kPlaces[i]) != nullptr) continue;
    listeners_[i].set(enter, leave, quick_check);
    observers.of(kPlaces[i]) = &listeners_[i];
    return true;
  }
  return false;
}

void CallListeners::remove(CallObservers& observers, PyObject* leave) {
  for (size_t i = 0; i < std::size(listeners_); ++i) {
    if (observers.of(kPlaces[i]) == nullptr || !listeners_[i].is_of(leave)) continue;
    observers.of(kPlaces[i]) = nullptr;
    listeners_[i].clear();
  }
}

bool hook_call(PyObject* function, QuickCheck quick_check, PyObject* enter, PyObject* leave,
               Called called) {
  HookedCall* const hooked = hooked_call_of(function);
  if (hooked == nullptr || (hooked->observers.empty() && !hooked->install(called))) return false;
  return hooked->listeners.add(hooked->observers, enter, leave, quick_check);
}

void unhook_calls(PyObject* leave) {
  for (HookedCall* each = newest; each != nullptr; each = each->next) {
    each->listeners.remove(each->observers, leave);
    take_back_if_unused(*each);
  }
}

bool observe_call(PyObject* function, ObserverOf which, CallObserver& observer, Called called) {
  HookedCall* const hooked = hooked_call_of(function);
  if (hooked == nullptr) return false;
  CallObserver*& present = hooked->observers.of(which);
  if (present == &observer) return hooked->is_installed();
  if (present != nullptr || (hooked->observers.empty() && !hooked->install(called))) return false;
  present = &observer;
  return true;
}

void unobserve_calls(ObserverOf which) {
  for (HookedCall* each = newest; each != nullptr; each = each->next) {
    each->observers.of(which) = nullptr;
    take_back_if_unused(*each);
  }
}

}  // namespace pig
