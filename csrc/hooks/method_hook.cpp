// SPDX-License-Identifier: Apache-2.0
//
// Methods that a class implements in C, hooked in the class's own table of them.
//
// The object in the class's dictionary stays what it is: it only points at an entry of that table,
// and it is the entry's C function that is replaced. So the slots of the type, bound methods that
// were taken earlier, and calls that the interpreter has specialised all get here.
//
// A function in such a table isn't told which entry it is called for, so each hooked method has a
// trampoline of its own, made by a template. A trampoline belongs to one method forever and calls
// through where nobody listens: a thread may be inside it, and whoever has kept its address may
// call it at any time.
#include <array>
#include <utility>

#include "hooks/call_hook.h"

namespace pig {
namespace {

class HookedMethod final : public HookedCall {
 public:
  bool install(Called) override {
    definition->ml_meth = trampoline;
    return true;
  }
  bool is_installed() const override { return definition->ml_meth == trampoline; }
  void take_back() override { definition->ml_meth = original; }

  PyMethodDef* definition = nullptr;
  PyCFunction original = nullptr;
  PyCFunction trampoline = nullptr;
};

constexpr size_t kMostMethods = 48;
HookedMethod hooked_methods[kMostMethods];
size_t method_count = 0;

PyObject* const* items_of(PyObject* tuple) {
  return reinterpret_cast<PyTupleObject*>(tuple)->ob_item;
}

template <size_t I>
PyObject* without_arguments(PyObject* self, PyObject* nothing) {
  const HookedMethod& method = hooked_methods[I];
  return method.observers.around({self, nullptr, 0},
                                 [&] { return method.original(self, nothing); });
}

template <size_t I>
PyObject* with_one(PyObject* self, PyObject* argument) {
  const HookedMethod& method = hooked_methods[I];
  return method.observers.around({self, &argument, 1},
                                 [&] { return method.original(self, argument); });
}

template <size_t I>
PyObject* with_positional(PyObject* self, PyObject* args) {
  const HookedMethod& method = hooked_methods[I];
  return method.observers.around({self, items_of(args), PyTuple_GET_SIZE(args)},
                                 [&] { return method.original(self, args); });
}

template <size_t I>
PyObject* with_keywords(PyObject* self, PyObject* args, PyObject* kwargs) {
  const HookedMethod& method = hooked_methods[I];
  const auto original =
      reinterpret_cast<PyCFunctionWithKeywords>(reinterpret_cast<void*>(method.original));
  return method.observers.around({self, items_of(args), PyTuple_GET_SIZE(args), nullptr, kwargs},
                                 [&] { return original(self, args, kwargs); });
}

struct Trampolines {
  PyCFunction without_arguments, with_one, with_positional, with_keywords;
};

template <size_t... I>
std::array<Trampolines, kMostMethods> trampolines_of_methods(std::index_sequence<I...>) {
  return {{{without_arguments<I>, with_one<I>, with_positional<I>,
            reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(with_keywords<I>))}...}};
}

/// The one that is called as a method with these flags is, or nullptr.
PyCFunction trampoline_for(size_t index, int flags) {
  static const auto trampolines = trampolines_of_methods(std::make_index_sequence<kMostMethods>());
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

}  // namespace

HookedCall* new_hooked_method(PyObject* method) {
  if (method_count == kMostMethods) return nullptr;
  PyMethodDef* definition = reinterpret_cast<PyMethodDescrObject*>(method)->d_method;
  PyCFunction trampoline = trampoline_for(method_count, definition->ml_flags);
  if (trampoline == nullptr) return nullptr;
  HookedMethod& made = hooked_methods[method_count++];
  made.definition = definition;
  made.original = definition->ml_meth;
  made.trampoline = trampoline;
  return &made;
}

}  // namespace pig
