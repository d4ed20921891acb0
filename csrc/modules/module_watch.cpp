// SPDX-License-Identifier: Apache-2.0
#include "modules/module_watch.h"

#include <array>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "hot/nvtx_range.h"
#include "hot/phase_table.h"
#include "python/object_table.h"
#include "python/python_hooks.h"
#include "record/module_times.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

constexpr size_t kMostModules = 4096;
constexpr uint16_t kDeepest = 60;
/// Of the tensors that go into a module, or come out of it, so many are looked at.
constexpr size_t kMostTensors = 8;
constexpr int kDeepestTensor = 4;

struct Watched {
  WatchedModule module;
  NvtxName nvtx;
  const PyObject* object = nullptr;  ///< a name for it, not to be looked into
  PyObject* reference = nullptr;     ///< a weak one, whose callback says that it has gone
  PyObject* enter = nullptr;
  PyObject* leave = nullptr;
  bool is_active = true;
  uint64_t calls = 0;
};

/// Watched modules by their objects. Each call of any module looks here, so it is one glance: a
/// module that goes says so itself, by the callback of a weak reference.
class WatchedTable {
 public:
  Watched* find(const PyObject* module) const {
    for (size_t i = slot_of(module);; ++i) {
      const Slot& slot = slots_[i & mask_];
      if (slot.module == module) return slot.watched;
      if (slot.module == nullptr) return nullptr;
    }
  }

  /// In place of one of the same object. Throws std::bad_alloc.
  void add(const PyObject* module, Watched* watched) {
    if (2 * (used_ + 1) > slots_.size()) make_room();
    put(module, watched);
  }

  /// Another object may come to have its address. The slot stays used until `make_room`.
  void remove(const PyObject* module, const Watched* watched) {
    for (size_t i = slot_of(module); slots_[i & mask_].module != nullptr; ++i) {
      Slot& slot = slots_[i & mask_];
      if (slot.module == module && slot.watched == watched) slot.watched = nullptr;
    }
  }

 private:
  struct Slot {
    const PyObject* module = nullptr;
    Watched* watched = nullptr;
  };

  size_t slot_of(const PyObject* module) const {
    return (reinterpret_cast<uintptr_t>(module) * 0x9E3779B97F4A7C15u) >> 40;
  }

  void put(const PyObject* module, Watched* watched) {
    size_t i = slot_of(module) & mask_;
    while (slots_[i].module != nullptr && slots_[i].module != module) i = (i + 1) & mask_;
    if (slots_[i].module == nullptr) ++used_;
    slots_[i] = {module, watched};
  }

  /// Leaves out what was removed, so that the size follows what there is, not what there was.
  void make_room() {
    size_t needed = 1;
    for (const Slot& slot : slots_) needed += slot.watched != nullptr ? 1 : 0;
    size_t size = kSmallest;
    while (size < 4 * needed) size *= 2;
    std::vector<Slot> before(size);
    before.swap(slots_);
    mask_ = slots_.size() - 1;
    used_ = 0;
    for (const Slot& slot : before)
      if (slot.watched != nullptr) put(slot.module, slot.watched);
  }

  static constexpr size_t kSmallest = 64;
  std::vector<Slot> slots_ = std::vector<Slot>(kSmallest);
  size_t mask_ = kSmallest - 1;
  size_t used_ = 0;
};

// Guarded by the GIL. Threads may be in calls of what was taken back, so nothing is freed.
ModuleQuestions ask{};
PyObject* root_function = nullptr;
auto* watched = new std::deque<Watched>;
size_t active_modules = 0;
WatchedTable* by_module = new WatchedTable;
auto* roots = new ObjectTable<bool>;
/// How many calls of watched modules, or of roots, the thread is in.
thread_local uint32_t depth_of_calls __attribute__((tls_model("initial-exec"))) = 0;

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) PyErr_Clear();
  return name;
}

// --- nodes that have a mark ---

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

// --- tensors of a call ---

class Tensors {
 public:
  ~Tensors() {
    for (size_t i = 0; i < count_; ++i) Py_DECREF(found_[i]);
  }

  /// Runs no code of Python's.
  void add(PyObject* object, int depth = 0) {
    if (object == nullptr || count_ == found_.size()) return;
    PyTypeObject* const type = Py_TYPE(object);
    if (type == ask.tensor || type == ask.parameter) {
      found_[count_++] = Py_NewRef(object);
    } else if (depth == kDeepestTensor) {
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

  /// Puts a mark on their nodes. Modes of the program hear nothing of it.
  void put_marks(PyObject* mark, bool beside_modes) const {
    if (count_ == 0 || mark == nullptr) return;
    PyObject* const modes = beside_modes ? modes_set_aside() : nullptr;
    Py_INCREF(mark);
    for (size_t i = 0; i < count_; ++i) put_mark(found_[i], mark);
    Py_DECREF(mark);
    if (modes != nullptr) bring_back(modes);
  }

 private:
  static PyObject* modes_set_aside() {
    static PyObject* const enter = interned("__enter__");
    PyObject* context = PyObject_CallNoArgs(ask.without_modes);
    PyObject* entered = context != nullptr ? PyObject_CallMethodNoArgs(context, enter) : nullptr;
    if (entered == nullptr) Py_CLEAR(context);
    Py_XDECREF(entered);
    PyErr_Clear();
    return context;
  }

  static void bring_back(PyObject* context) {
    PyObject* result = PyObject_CallMethod(context, "__exit__", "OOO", Py_None, Py_None, Py_None);
    Py_XDECREF(result);
    Py_DECREF(context);
    PyErr_Clear();
  }

  std::array<PyObject*, kMostTensors> found_;
  size_t count_ = 0;
};

/// Whether modes of the program hear of what is asked of a tensor.
bool has_modes() {
  PyObject* count = PyObject_CallNoArgs(ask.mode_count);
  const long modes = count != nullptr ? PyLong_AsLong(count) : 0;
  Py_XDECREF(count);
  PyErr_Clear();
  return modes > 0;
}

bool is_compiling() {
  static PyObject* const name = interned("_is_compiling_flag");
  PyObject* value = PyDict_GetItemWithError(ask.compiler_names, name);
  if (value == nullptr) PyErr_Clear();
  return value == Py_True;
}

/// Whether a call is part of a backward pass, which then recomputes what was not kept.
bool recomputes() {
  if (PIG_LIKELY(!is_any_backward_pass())) return false;
  if (is_in_backward_pass()) return true;
  PyObject* result = PyObject_CallNoArgs(ask.graph_task_id);
  const long number = result != nullptr ? PyLong_AsLong(result) : -1;
  Py_XDECREF(result);
  PyErr_Clear();
  return number != -1;
}

/// The ids of a module's name. Models that are made one after the other have the same names.
WatchedModule names_of(const std::string& text) {
  static auto* const known = new std::unordered_map<std::string, WatchedModule>;
  const auto found = known->find(text);
  if (found != known->end()) return found->second;
  const auto id = [&text](NameKind kind) {
    return PhaseTable::instance().add(text, kind).value_or(PhaseTable::kTooManyNames);
  };
  const WatchedModule names{id(NameKind::kForward), id(NameKind::kBackward),
                            id(NameKind::kRecompute)};
  return known->emplace(text, names).first->second;
}

/// Asks about a module that is called with no other around it, until the answer is True.
void tell_of_root(PyObject* module) {
  if (roots->find(module) != nullptr) return;
  PyObject* function = Py_NewRef(root_function);
  PyObject* result = PyObject_CallOneArg(function, module);
  if (result == nullptr) PyErr_WriteUnraisable(function);
  if (result == nullptr || result == Py_True) roots->add(module, true);
  Py_XDECREF(result);
  Py_DECREF(function);
}

class WatchedCall final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    if (call.self == nullptr || active_epoch.load(std::memory_order_relaxed) == 0)
      return Observing::ignored;
    try {
      return begin(call);
    } catch (const std::bad_alloc&) {
      count_drop(Drop::kNoMemory);
      return Observing::ignored;
    }
  }

  bool ends(ObservedCall& call, PyObject* result) override {
    --depth_of_calls;
    if (call.subject == nullptr) return true;
    const auto& module = *static_cast<const Watched*>(call.subject);
    end_module(call.token);
    nvtx_pop(module.nvtx);
    if (result == nullptr) return true;
    Tensors outputs;
    outputs.add(result);
    outputs.put_marks(module.enter, call.session != 0);
    return true;
  }

 private:
  static Observing begin(ObservedCall& call) {
    Watched* module = by_module->find(call.self);
    if (module == nullptr) {
      if (root_function == nullptr || depth_of_calls > 0 || is_compiling())
        return Observing::ignored;
      ++depth_of_calls;  // those inside are no roots
      tell_of_root(call.self);
      return Observing::begun;
    }
    if (is_compiling()) return Observing::ignored;
    Tensors inputs;
    for (Py_ssize_t i = 0; i < call.count; ++i) inputs.add(call.others[i]);
    if (call.names != nullptr)
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.names); ++i)
        inputs.add(call.others[call.count + i]);
    call.session = has_modes() ? 1 : 0;  // at its end they are the same
    inputs.put_marks(module->leave, call.session != 0);
    ++depth_of_calls;
    ++module->calls;
    call.subject = module;
    nvtx_push(module->nvtx);
    call.token = begin_module(module->module, recomputes());
    return Observing::begun;
  }
};

class WatchedBackwardPass final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    if (active_modules == 0) return Observing::ignored;
    call.token = begin_backward_pass();
    return call.token != 0 ? Observing::begun : Observing::ignored;
  }
  bool ends(ObservedCall& call, PyObject*) override {
    end_backward_pass(call.token);
    return true;
  }
};

/// The body of a mark. `self` is twice the module's number, and one more where it is entered.
PyObject* mark_is_reached(PyObject* self, PyObject*) {
  const long code = PyLong_AsLong(self);
  const Watched& module = (*watched)[static_cast<size_t>(code / 2)];
  if (module.is_active && active_epoch.load(std::memory_order_relaxed) != 0) {
    if (code % 2 != 0) {
      enter_in_backward(module.module);
    } else {
      leave_in_backward(module.module);
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef mark_definition = {"module_mark", mark_is_reached, METH_O, nullptr};

/// The body of a weak reference's callback; `self` is the module's number.
PyObject* module_is_gone(PyObject* self, PyObject*) {
  unwatch_module(PyLong_AsLongLong(self));
  Py_RETURN_NONE;
}

PyMethodDef gone_definition = {"module_is_gone", module_is_gone, METH_O, nullptr};

/// A weak reference to a module, or nullptr with a Python error set.
PyObject* new_reference(PyObject* module, int64_t number) {
  PyObject* code = PyLong_FromLongLong(number);
  PyObject* callback = code != nullptr ? PyCFunction_New(&gone_definition, code) : nullptr;
  Py_XDECREF(code);
  PyObject* reference = callback != nullptr ? PyWeakref_NewRef(module, callback) : nullptr;
  Py_XDECREF(callback);
  return reference;
}

bool is_known(int64_t number) {
  if (number >= 0 && static_cast<size_t>(number) < watched->size()) return true;
  PyErr_SetString(PyExc_ValueError, "no such module");
  return false;
}

}  // namespace

void set_module_questions(const ModuleQuestions& questions) {
  for (PyObject* kept : {reinterpret_cast<PyObject*>(questions.tensor),
                         reinterpret_cast<PyObject*>(questions.parameter), questions.compiler_names,
                         questions.graph_task_id, questions.mode_count, questions.without_modes})
    Py_INCREF(kept);
  ask = questions;
}

void set_root_function(PyObject* function) {
  roots->clear();
  Py_XDECREF(std::exchange(root_function, function != Py_None ? Py_NewRef(function) : nullptr));
}

int64_t watch_module(PyObject* module, PyObject* name, int64_t parent) {
  if (parent >= 0 && !is_known(parent)) return -1;
  if (active_modules == kMostModules) {
    PyErr_SetString(PyExc_OverflowError, "too many modules are watched");
    return -1;
  }
  PyObject* bytes = PyUnicode_AsEncodedString(name, "utf-8", "surrogatepass");
  if (bytes == nullptr) return -1;
  const std::string text(PyBytes_AS_STRING(bytes), static_cast<size_t>(PyBytes_GET_SIZE(bytes)));
  Py_DECREF(bytes);
  try {
    Watched one{};
    one.module = names_of(text);
    if (parent >= 0) {
      const WatchedModule& around = (*watched)[static_cast<size_t>(parent)].module;
      one.module.depth = static_cast<uint16_t>(around.depth + 1);
      one.module.parent = &around;
    }
    if (one.module.depth >= kDeepest) {
      one.module.depth = 0;
      one.module.parent = nullptr;
    }
    one.nvtx = nvtx_name(text);
    const auto number = static_cast<int64_t>(watched->size());
    one.object = module;
    one.reference = new_reference(module, number);
    if (one.reference == nullptr) return -1;
    watched->push_back(one);
    by_module->add(module, &watched->back());
    ++active_modules;
    return number;
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
    return -1;
  }
}

bool set_module_marks(int64_t number, PyObject* enter, PyObject* leave) {
  if (!is_known(number)) return false;
  Watched& module = (*watched)[static_cast<size_t>(number)];
  Py_XSETREF(module.enter, Py_NewRef(enter));
  Py_XSETREF(module.leave, Py_NewRef(leave));
  return true;
}

PyObject* new_module_mark(int64_t number, bool enters) {
  if (!is_known(number)) return nullptr;
  PyObject* code = PyLong_FromLongLong(2 * number + (enters ? 1 : 0));
  if (code == nullptr) return nullptr;
  PyObject* mark = PyCFunction_New(&mark_definition, code);
  Py_DECREF(code);
  return mark;
}

void unwatch_module(int64_t number) {
  if (number < 0 || static_cast<size_t>(number) >= watched->size()) return;
  Watched& module = (*watched)[static_cast<size_t>(number)];
  if (std::exchange(module.is_active, false)) --active_modules;
  by_module->remove(module.object, &module);
  Py_CLEAR(module.reference);
  Py_CLEAR(module.enter);
  Py_CLEAR(module.leave);
}

uint64_t calls_of_module(int64_t number) {
  if (number < 0 || static_cast<size_t>(number) >= watched->size()) return 0;
  return (*watched)[static_cast<size_t>(number)].calls;
}

CallObserver& watched_call() {
  static auto* const observer = new WatchedCall;
  return *observer;
}

CallObserver& watched_backward_pass() {
  static auto* const observer = new WatchedBackwardPass;
  return *observer;
}

}  // namespace pig
