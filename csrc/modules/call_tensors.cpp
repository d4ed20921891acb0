// SPDX-License-Identifier: Apache-2.0
#include "modules/call_tensors.h"

#include <array>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/ticks.h"

namespace pig {

ModuleQuestions module_questions{};

namespace {

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) PyErr_Clear();
  return name;
}

/// A node has at most one mark that counts, the first. Nodes are told apart by their numbers, which
/// ascend on each thread: of a slot's nodes the newest is known.
class MarkedNodes {
 public:
  /// False where it was marked before.
  bool mark(uint64_t number) {
    uint64_t& slot = slots_[number % slots_.size()];
    return std::exchange(slot, number + 1) != number + 1;
  }

 private:
  std::array<uint64_t, 8192> slots_{};
};
/// Of the calling thread; it frees them at its end.
thread_local MarkedNodes* marked_nodes __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local std::unique_ptr<MarkedNodes> own_marked_nodes;

/// Whether a node is new to us. Clears errors.
bool mark_node(PyObject* node) {
  static PyObject* const name = interned("_sequence_nr");
  PyObject* result = PyObject_CallMethodNoArgs(node, name);
  const uint64_t number = result != nullptr ? PyLong_AsUnsignedLongLong(result) : ~uint64_t{0};
  Py_XDECREF(result);
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  if (PIG_UNLIKELY(marked_nodes == nullptr)) {
    own_marked_nodes.reset(new (std::nothrow) MarkedNodes);
    marked_nodes = own_marked_nodes.get();
  }
  return marked_nodes != nullptr && number != ~uint64_t{0} && marked_nodes->mark(number);
}

/// The node of a tensor gets a mark, if it has none.
void put_mark(PyObject* tensor, PyObject* mark) {
  static PyObject* const grad_fn = interned("grad_fn");
  static PyObject* const register_hooks = interned("_register_hook_dict");
  PyObject* node = PyObject_GetAttr(tensor, grad_fn);
  if (node != nullptr && node != Py_None && mark_node(node)) {
    PyObject* result = PyObject_CallMethodOneArg(node, register_hooks, mark);
    Py_XDECREF(result);
  }
  Py_XDECREF(node);
  PyErr_Clear();
}

PyObject* modes_set_aside() {
  static PyObject* const enter = interned("__enter__");
  PyObject* context = PyObject_CallNoArgs(module_questions.without_modes);
  PyObject* entered = context != nullptr ? PyObject_CallMethodNoArgs(context, enter) : nullptr;
  if (entered == nullptr) Py_CLEAR(context);
  Py_XDECREF(entered);
  PyErr_Clear();
  return context;
}

void bring_back(PyObject* context) {
  PyObject* result = PyObject_CallMethod(context, "__exit__", "OOO", Py_None, Py_None, Py_None);
  Py_XDECREF(result);
  Py_DECREF(context);
  PyErr_Clear();
}

}  // namespace

bool CallTensors::modes_hear() {
  PyObject* count = PyObject_CallNoArgs(module_questions.mode_count);
  const long modes = count != nullptr ? PyLong_AsLong(count) : 0;
  Py_XDECREF(count);
  PyErr_Clear();
  return modes > 0;
}

void CallTensors::add(PyObject* object, int depth) {
  if (object == nullptr || count_ == found_.size() || looks_ == kMostLooks) return;
  ++looks_;
  PyTypeObject* const type = Py_TYPE(object);
  if (type == module_questions.tensor || type == module_questions.parameter) {
    found_[count_++] = Py_NewRef(object);
  } else if (depth == kDeepest) {
    return;
  } else if (PyTuple_Check(object)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); ++i)
      add(PyTuple_GET_ITEM(object, i), depth + 1);
  } else if (PyList_Check(object)) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(object); ++i)
      add(PyList_GET_ITEM(object, i), depth + 1);
  } else if (PyDict_Check(object)) {
    Py_ssize_t at = 0;
    PyObject *key, *value;
    while (PyDict_Next(object, &at, &key, &value) != 0) add(value, depth + 1);
  }
}

void CallTensors::put_marks(PyObject* mark, bool beside_modes) const {
  if (count_ == 0 || mark == nullptr) return;
  PyObject* const modes = beside_modes ? modes_set_aside() : nullptr;
  Py_INCREF(mark);
  for (size_t i = 0; i < count_; ++i) put_mark(found_[i], mark);
  Py_DECREF(mark);
  if (modes != nullptr) bring_back(modes);
}

}  // namespace pig
