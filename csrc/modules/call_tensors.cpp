// SPDX-License-Identifier: Apache-2.0
#include "modules/call_tensors.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "base/loaded_library.h"
#include "base/threads.h"
#include "base/ticks.h"
#include "hooks/tensor_inspector.h"
#include "record/module_sampling.h"

namespace pig {
namespace {

ModuleQuestions module_questions{};
/// The C++ function behind torch's Python one, to avoid the Python call; nullptr: not found.
bool (*has_modes)() = nullptr;
constexpr uint64_t kNoNode = ~uint64_t{0};

/// The integer that a call gave, or `otherwise`, with no error set. Takes the reference.
int64_t integer(PyObject* result, int64_t otherwise) {
  const int64_t number = result != nullptr ? PyLong_AsLongLong(result) : otherwise;
  Py_XDECREF(result);
  if (PyErr_Occurred() == nullptr) return number;
  PyErr_Clear();
  return otherwise;
}

/// The node of a tensor, a new reference; nullptr where there is none. Of the descriptor, as no
/// class of tensors should see the question.
PyObject* node_of(PyObject* tensor) {
  PyObject* const descriptor = module_questions.grad_fn;
  PyObject* const type = reinterpret_cast<PyObject*>(Py_TYPE(tensor));
  PyObject* node = Py_TYPE(descriptor)->tp_descr_get(descriptor, tensor, type);
  if (PIG_UNLIKELY(node == nullptr)) PyErr_Clear();
  if (node == Py_None) Py_CLEAR(node);
  return node;
}

/// The number of a node; they ascend on each thread. `kNoNode`: not known.
uint64_t number_of(PyObject* node) {
  static PyObject* const name = PyUnicode_InternFromString("_sequence_nr");
  return static_cast<uint64_t>(integer(PyObject_CallMethodNoArgs(node, name), -1));
}

/// Has the hooks of a tensor called before a node.
void add_hooks(PyObject* node, PyObject* tensor) {
  static PyObject* const name = PyUnicode_InternFromString("_register_hook_dict");
  PyObject* result = PyObject_CallMethodOneArg(node, name, tensor);
  if (PIG_UNLIKELY(result == nullptr)) PyErr_Clear();
  Py_XDECREF(result);
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

/// Of the calling thread, whose end frees them.
thread_local MarkedNodes* marks = nullptr;
const ThreadEnd marks_end([](void* of_thread) {
  marks = nullptr;
  delete static_cast<MarkedNodes*>(of_thread);
});

/// nullptr where there is no memory.
MarkedNodes* marks_of_thread() {
  if (PIG_UNLIKELY(marks == nullptr)) {
    marks = new (std::nothrow) MarkedNodes;
    if (!marks_end.set(marks)) delete std::exchange(marks, nullptr);
  }
  return marks;
}

/// The node of a tensor gets a mark, if it has none.
void put_mark(MarkedNodes& marks, PyObject* tensor, PyObject* mark) {
  PyObject* node = node_of(tensor);
  if (node == nullptr) return;
  const uint64_t number = number_of(node);
  if (number != kNoNode && marks.mark(number)) add_hooks(node, mark);
  Py_DECREF(node);
}

/// What torch does for a mark in the backward pass, and as the node is freed, takes about twice the
/// time that it takes to put it there (counted by callgrind, torch 2.13).
constexpr uint64_t kCostInBackward = 2;

PyObject* modes_set_aside() {
  PyObject* context = PyObject_CallNoArgs(module_questions.without_modes);
  PyObject* entered =
      context != nullptr ? PyObject_CallMethod(context, "__enter__", nullptr) : nullptr;
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

void set_module_questions(const ModuleQuestions& questions) {
  for (PyObject* kept : {questions.grad_fn, questions.mode_count, questions.without_modes})
    Py_INCREF(kept);
  module_questions = questions;
  has_modes = loaded_function<decltype(has_modes)>("libtorch_cpu.so",
                                                   "_ZN2at4impl27torch_function_mode_enabledEv");
}

bool modes_hear() {
  if (PIG_LIKELY(has_modes != nullptr)) return has_modes();
  return integer(PyObject_CallNoArgs(module_questions.mode_count), 0) > 0;
}

void CallTensors::add(PyObject* object, int depth) {
  if (object == nullptr || count_ == found_.size() || looks_ == kMostLooks) return;
  ++looks_;
  if (tensor_inspector.is_tensor(object)) {
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
  MarkedNodes* const marks = marks_of_thread();
  if (marks == nullptr) return;
  const ModuleCost in_backward(kCostInBackward);
  PyObject* const modes = beside_modes ? modes_set_aside() : nullptr;
  Py_INCREF(mark);
  for (size_t i = 0; i < count_; ++i) put_mark(*marks, found_[i], mark);
  Py_DECREF(mark);
  if (modes != nullptr) bring_back(modes);
}

}  // namespace pig
