// SPDX-License-Identifier: Apache-2.0
//
// Methods that a class implements in C, hooked in the class's own table of them.
//
// The object in the class's dictionary stays what it is: it only points at an entry of that table,
// and it is the entry's C function that is replaced. So the slots of the type, bound methods that
// were taken earlier, and calls that the interpreter has specialised all get here.
//
// A function in such a table isn't told which entry it is called for, so each hooked method has a
// trampoline of its own, made by a template. A trampoline belongs to one method for ever and calls
// through where nobody listens: a thread may be inside it, and whoever has kept its address may
// call it at any time.
#include "hooks/method_hook.h"

#include <array>
#include <utility>

#include "base/ticks.h"
#include "hooks/call_listeners.h"

namespace pig {
namespace {

struct HookedMethod {
  PyMethodDef* definition;
  PyCFunction original;
  PyCFunction trampoline;
  CallGlance glance;
  CallListeners listeners;
  CallObservers observers;
};

constexpr size_t kMost = 48;
HookedMethod methods[kMost];
size_t method_count = 0;

bool is_quiet(const HookedMethod& method, PyObject* self, PyObject* const* others, Py_ssize_t count,
              bool has_keywords) {
  return in_watched_call || method.listeners.empty() ||
         (!method.listeners.hear_of_host() &&
          stays_on_host(method.glance, self, others, count, has_keywords));
}

/// `self` before the others; nullptr when there is no memory.
PyObject* joined(PyObject* self, PyObject* const* others, Py_ssize_t count) {
  PyObject* args = PyTuple_New(count + 1);
  if (args == nullptr) return nullptr;
  Py_INCREF(self);
  PyTuple_SET_ITEM(args, 0, self);
  for (Py_ssize_t i = 0; i < count; ++i) {
    Py_INCREF(others[i]);
    PyTuple_SET_ITEM(args, i + 1, others[i]);
  }
  return args;
}

template <typename Call>
PyObject* call_hooked(const HookedMethod& method, PyObject* self, PyObject* const* others,
                      Py_ssize_t count, PyObject* kwargs, Call call) {
  if (!method.observers.empty()) return method.observers.around({self, others, count}, call);
  const bool has_keywords = kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0;
  if (PIG_LIKELY(is_quiet(method, self, others, count, has_keywords))) return call();
  PyObject* args = joined(self, others, count);
  PyObject* result = method.listeners.around(args, has_keywords ? kwargs : nullptr, call);
  Py_XDECREF(args);
  return result;
}

PyObject* const* items_of(PyObject* tuple) {
  return reinterpret_cast<PyTupleObject*>(tuple)->ob_item;
}

template <size_t I>
PyObject* without_arguments(PyObject* self, PyObject* nothing) {
  const HookedMethod& method = methods[I];
  return call_hooked(method, self, nullptr, 0, nullptr,
                     [&] { return method.original(self, nothing); });
}

template <size_t I>
PyObject* with_one(PyObject* self, PyObject* argument) {
  const HookedMethod& method = methods[I];
  return call_hooked(method, self, &argument, 1, nullptr,
                     [&] { return method.original(self, argument); });
}

template <size_t I>
PyObject* with_positional(PyObject* self, PyObject* args) {
  const HookedMethod& method = methods[I];
  return call_hooked(method, self, items_of(args), PyTuple_GET_SIZE(args), nullptr,
                     [&] { return method.original(self, args); });
}

template <size_t I>
PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
  const HookedMethod& method = methods[I];
  const auto original =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(method.original));
  return call_hooked(method, self, items_of(args), PyTuple_GET_SIZE(args), kwargs,
                     [&] { return original(self, args, kwargs); });
}

struct Trampolines {
  PyCFunction without_arguments, with_one, with_positional, with_keywords;
};

template <size_t... I>
std::array<Trampolines, kMost> make_trampolines(std::index_sequence<I...>) {
  return {{{without_arguments<I>, with_one<I>, with_positional<I>,
            reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(with_keywords<I>))}...}};
}

/// The one that is called as a method with these flags is, or nullptr.
PyCFunction trampoline_for(size_t index, int flags) {
  static const auto trampolines = make_trampolines(std::make_index_sequence<kMost>());
  switch (flags & ~METH_COEXIST) {
    case METH_NOARGS:
      return trampolines[index].without_arguments;
    case METH_O:
      return trampolines[index].with_one;
    case METH_VARARGS:
      return trampolines[index].with_positional;
    case METH_VARARGS | METH_KEYWORDS:
      return trampolines[index].with_keywords;
  }
  return nullptr;
}

/// Of one that was hooked before, what was saved then.
HookedMethod* entry_of(PyObject* method) {
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  for (size_t i = 0; i < method_count; ++i)
    if (methods[i].definition == definition) return &methods[i];
  if (method_count == kMost) return nullptr;
  PyCFunction trampoline = trampoline_for(method_count, definition->ml_flags);
  if (trampoline == nullptr) return nullptr;
  HookedMethod& entry = methods[method_count++];
  Py_INCREF(method);  // for good
  entry.definition = definition;
  entry.original = definition->ml_meth;
  entry.trampoline = trampoline;
  return &entry;
}

void take_back_if_unused(HookedMethod& entry) {
  if (entry.listeners.empty() && entry.observers.empty() &&
      entry.definition->ml_meth == entry.trampoline)
    entry.definition->ml_meth = entry.original;
}

}  // namespace

bool hook_method(PyObject* method, CallGlance glance, PyObject* enter, PyObject* leave,
                 bool hears_of_host) {
#ifdef Py_GIL_DISABLED
  return false;  // other threads may be reading the table
#endif
  if (!Py_IS_TYPE(method, &PyMethodDescr_Type)) return false;
  HookedMethod* entry = entry_of(method);
  if (entry == nullptr || !entry->observers.empty() ||
      !entry->listeners.add(enter, leave, hears_of_host))
    return false;
  entry->glance = glance;
  entry->definition->ml_meth = entry->trampoline;
  return true;
}

void unhook_methods(PyObject* leave) {
  for (size_t i = 0; i < method_count; ++i) {
    HookedMethod& entry = methods[i];
    entry.listeners.remove(leave);
    take_back_if_unused(entry);
  }
}

bool observe_method(PyObject* method, ObserverOf which, CallObserver& observer) {
#ifdef Py_GIL_DISABLED
  return false;
#endif
  if (!Py_IS_TYPE(method, &PyMethodDescr_Type)) return false;
  HookedMethod* entry = entry_of(method);
  if (entry == nullptr || !entry->listeners.empty() || entry->observers.of(which) != nullptr)
    return false;
  entry->observers.of(which) = &observer;
  entry->definition->ml_meth = entry->trampoline;
  return true;
}

void unobserve_methods(ObserverOf which) {
  for (size_t i = 0; i < method_count; ++i) {
    methods[i].observers.of(which) = nullptr;
    take_back_if_unused(methods[i]);
  }
}

}  // namespace pig
