// SPDX-License-Identifier: Apache-2.0
//
// Functions, hooked in the word of their object by which the interpreter calls them.
//
// Of a builtin function, the C function in the entry of its table (method_hook.cpp) must stay: its
// hash and its equality are made of it, and torch.compile looks such functions up. But CPython lets
// a function say how it is to be called, its `vectorcall`. Many of torch's builtin functions take a
// tuple and a dictionary and have none; ours makes these two and calls the type's way. Functions in
// Python have one, which is kept and called (asking_function.h).
//
// Builtin functions that take one argument or an array of them have one, too. But the interpreter
// calls them without asking, once it has specialised a call: if the flags in the function's entry
// are exactly those that it knows. So the function gets a copy of its entry, with a flag that
// matters only while a class is made (METH_COEXIST). Each call is then made by the `vectorcall`.
//
// As with methods, each function has a trampoline of its own forever, which calls through where
// nobody listens.
#include <array>
#include <utility>

#include "base/ticks.h"
#include "hooks/call_hook.h"

namespace pig {
namespace {

vectorcallfunc vectorcall_of(PyObject* function) {
  return PyCFunction_CheckExact(function)
             ? reinterpret_cast<PyCFunctionObject*>(function)->vectorcall
             : reinterpret_cast<PyFunctionObject*>(function)->vectorcall;
}

void set_vectorcall(PyObject* function, vectorcallfunc call) {
  if (PyCFunction_CheckExact(function)) {
    reinterpret_cast<PyCFunctionObject*>(function)->vectorcall = call;
    return;
  }
#if PY_VERSION_HEX >= 0x030C0000
  PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), call);
#else
  reinterpret_cast<PyFunctionObject*>(function)->vectorcall = call;
#endif
}

bool is_hookable(PyObject* function) {
  if (PyFunction_Check(function)) return vectorcall_of(function) != nullptr;
  if (!PyCFunction_CheckExact(function)) return false;
  const int flags = PyCFunction_GET_FLAGS(function);
  if ((flags & METH_VARARGS) == 0) return vectorcall_of(function) != nullptr;
  return (flags & METH_KEYWORDS) != 0 && vectorcall_of(function) == nullptr;
}

PyMethodDef*& entry_of(PyObject* function) {
  return reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
}

class HookedFunction final : public HookedCall {
 public:
  /// False also where it is somebody else's since, or before: theirs stays, and ours would come by
  /// twice.
  bool install(Called called) override {
    if (vectorcall_of(function) != original) return false;
    if (PyFunction_Check(function) && called == Called::anyhow && !make_asking(function))
      return false;
    if (entry != nullptr) {
      if (entry_of(function) != entry) return false;
      entry_of(function) = &asking_entry;
    }
    set_vectorcall(function, trampoline);
    return true;
  }
  bool is_installed() const override { return vectorcall_of(function) == trampoline; }
  void take_back() override {
    set_vectorcall(function, original);
    if (entry != nullptr) entry_of(function) = entry;
    make_plain(function);
  }

  PyObject* function = nullptr;
  vectorcallfunc original = nullptr;  ///< nullptr: none
  vectorcallfunc trampoline = nullptr;
  PyMethodDef* entry = nullptr;  ///< of a builtin function that has one; nullptr for others
  PyMethodDef asking_entry{};
};

constexpr size_t kMostFunctions = 192;
HookedFunction hooked_functions[kMostFunctions];
size_t function_count = 0;

/// As the type calls functions that take a tuple and a dictionary.
PyObject* call_by_type(PyObject* function, PyObject* const* args, size_t nargsf, PyObject* names) {
  PyObject* tuple = PyTuple_New(PyVectorcall_NARGS(nargsf));
  PyObject* dictionary = nullptr;
  const Py_ssize_t named = names != nullptr ? PyTuple_GET_SIZE(names) : 0;
  bool is_complete = tuple != nullptr && (named == 0 || (dictionary = PyDict_New()) != nullptr);
  for (Py_ssize_t i = 0; is_complete && i < PyTuple_GET_SIZE(tuple); ++i)
    PyTuple_SET_ITEM(tuple, i, Py_NewRef(*args++));
  for (Py_ssize_t i = 0; is_complete && i < named; ++i)
    is_complete = PyDict_SetItem(dictionary, PyTuple_GET_ITEM(names, i), args[i]) == 0;
  PyObject* result = is_complete ? PyCFunction_Type.tp_call(function, tuple, dictionary) : nullptr;
  Py_XDECREF(tuple);
  Py_XDECREF(dictionary);
  return result;
}

PyObject* call_hooked(const HookedFunction& hooked, PyObject* const* args, size_t nargsf,
                      PyObject* names) {
  const auto call = [&] {
    if (PIG_LIKELY(hooked.original != nullptr))
      return hooked.original(hooked.function, args, nargsf, names);
    return call_by_type(hooked.function, args, nargsf, names);
  };
  const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
  if (count == 0) return hooked.observers.around({nullptr, args, 0, names}, call);
  return hooked.observers.around({args[0], args + 1, count - 1, names}, call);
}

template <size_t I>
PyObject* trampoline(PyObject*, PyObject* const* args, size_t nargsf, PyObject* names) {
  return call_hooked(hooked_functions[I], args, nargsf, names);
}

template <size_t... I>
std::array<vectorcallfunc, kMostFunctions> trampolines_of_functions(std::index_sequence<I...>) {
  return {{trampoline<I>...}};
}

}  // namespace

HookedCall* new_hooked_function(PyObject* function) {
  static const auto trampolines =
      trampolines_of_functions(std::make_index_sequence<kMostFunctions>());
  if (function_count == kMostFunctions || !is_hookable(function)) return nullptr;
  HookedFunction& made = hooked_functions[function_count];
  made.function = function;
  made.original = vectorcall_of(function);
  made.trampoline = trampolines[function_count++];
  if (PyCFunction_CheckExact(function) && made.original != nullptr) {
    made.entry = entry_of(function);
    made.asking_entry = *made.entry;
    made.asking_entry.ml_flags |= METH_COEXIST;
  }
  return &made;
}

}  // namespace pig
