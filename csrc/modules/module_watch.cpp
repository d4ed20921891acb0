// SPDX-License-Identifier: Apache-2.0
//
// Observes the calls of a model's modules, and puts the marks on autograd's nodes that show its
// backward pass (record/module_times.h).
//
// A mark is a hook of the node, as tensors have: it is called before the node. To make one by
// `register_prehook` runs Python code each time. So there are two tensors for each module, which
// exist only for their dictionary of hooks, and `_register_hook_dict` puts that on a node.
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "hooks/call_hook.h"
#include "hooks/tensor_inspector.h"
#include "hot/module_stack.h"
#include "hot/nvtx_range.h"
#include "hot/phase_table.h"
#include "modules/call_tensors.h"
#include "python/bindings.h"
#include "python/object_table.h"
#include "python/phase_registry.h"
#include "python/python_hooks.h"
#include "record/module_sampling.h"
#include "record/module_times.h"
#include "record/recording_thread.h"

namespace py = pybind11;

namespace pig {
namespace {

using namespace py::literals;

constexpr size_t kMostModules = 4096;
constexpr uint16_t kDeepest = 60;
constexpr int64_t kNoMemory = -2;

/// A watched module, and its marks.
struct Watched {
  WatchedModule module;
  NvtxName nvtx;
  const PyObject* object = nullptr;  ///< a name for it, not to be looked into
  PyObject* reference = nullptr;     ///< a weak one, whose callback says that it has gone
  PyObject* enter = nullptr;
  PyObject* leave = nullptr;
  bool is_active = true;
  bool was_called = false;
};

// Guarded by the GIL. Threads may be in calls of what was taken back, so nothing is freed.
PyObject* root_function = nullptr;
auto* watched = new std::deque<Watched>;
size_t active_modules = 0;
/// Those that exist: a module that goes says so itself, so one glance at its address is enough.
auto* by_module = new std::unordered_map<const PyObject*, Watched*>;
auto* roots = new ObjectTable<bool>;
/// How many calls of watched modules, or of roots, the thread is in.
thread_local uint32_t depth_of_calls = 0;

/// Whether a call is part of a backward pass, which then recomputes what was not kept.
bool recomputes() {
  if (PIG_LIKELY(!is_any_backward_pass())) return false;
  return is_in_backward_pass() || is_in_graph_task();
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
  const auto function = py::reinterpret_borrow<py::object>(root_function);
  const auto result =
      py::reinterpret_steal<py::object>(PyObject_CallOneArg(function.ptr(), module));
  if (!result) PyErr_WriteUnraisable(function.ptr());
  if (!result || result.ptr() == Py_True) roots->add(module, true);
}

class WatchedCall final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    if (call.self == nullptr || active_epoch.load(std::memory_order_relaxed) == 0)
      return Observing::ignored;
    return with_memory(Observing::ignored, [&call] { return begin(call); });
  }

  bool ends(ObservedCall& call, PyObject* result) override {
    --depth_of_calls;
    if (call.subject == nullptr) return true;
    const ModuleCost cost;
    const auto& module = *static_cast<const Watched*>(call.subject);
    end_module(call.token);
    nvtx_pop(module.nvtx);
    if (result == nullptr) return true;
    CallTensors outputs;
    outputs.add(result);
    outputs.put_marks(module.enter, call.session != 0);
    return true;
  }

 private:
  static Observing begin(ObservedCall& call) {
    const auto found = by_module->find(call.self);
    if (found == by_module->end()) {
      if (root_function == nullptr || depth_of_calls > 0 || is_compiling())
        return Observing::ignored;
      ++depth_of_calls;  // those inside are no roots
      with_memory(false, [&call] {
        tell_of_root(call.self);
        return true;
      });
      return Observing::begun;
    }
    Watched* const module = found->second;
    if (ModuleSampling::instance().is_skipped_step()) {
      module->was_called = true;
      return Observing::ignored;
    }
    if (is_compiling()) return Observing::ignored;
    const ModuleCost cost;
    CallTensors inputs;
    for (Py_ssize_t i = 0; i < call.count; ++i) inputs.add(call.others[i]);
    if (call.names != nullptr)
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(call.names); ++i)
        inputs.add(call.others[call.count + i]);
    call.session = modes_hear() ? 1 : 0;  // at its end they are the same
    inputs.put_marks(module->leave, call.session != 0);
    ++depth_of_calls;
    module->was_called = true;
    call.subject = module;
    nvtx_push(module->nvtx);
    call.token = begin_module(module->module, recomputes());
    return Observing::begun;
  }
};

/// The hooks of all marks: what is on nodes is these dictionaries. Never freed.
std::vector<PyObject*>* const hooks_of_marks = new std::vector<PyObject*>;
bool is_backward_compiled = false;

/// Compiled autograd traces the hooks of nodes, and can't trace a mark: where it is on, all marks
/// lose what they do, also those that are on nodes already. There are none from then on.
void look_for_compiled_autograd() {
  static PyObject* const name = PyUnicode_InternFromString("torch._dynamo.compiled_autograd");
  static PyObject* const is_enabled = PyUnicode_InternFromString("compiled_autograd_enabled");
  PyObject* const modules = PyImport_GetModuleDict();
  PyObject* const module = PyDict_GetItemWithError(modules, name);
  PyObject* const enabled = module != nullptr ? PyObject_GetAttr(module, is_enabled) : nullptr;
  PyErr_Clear();
  if (enabled == Py_True) {
    is_backward_compiled = true;
    for (PyObject* hooks : *hooks_of_marks) PyDict_Clear(hooks);
  }
  Py_XDECREF(enabled);
}

class WatchedBackwardPass final : public CallObserver {
 public:
  Observing begins(ObservedCall& call) override {
    if (!is_backward_compiled && !hooks_of_marks->empty()) look_for_compiled_autograd();
    if (is_backward_compiled || active_modules == 0 || ModuleSampling::instance().is_skipped_step())
      return Observing::ignored;
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
    const ModuleCost cost;
    if (code % 2 != 0) {
      enter_in_backward(module.module);
    } else {
      leave_in_backward(module.module);
    }
  }
  Py_RETURN_NONE;
}

PyMethodDef mark_definition = {"module_mark", mark_is_reached, METH_O, nullptr};

/// It is no longer observed; marks that are on nodes do nothing.
void unwatch_module(int64_t number) {
  if (number < 0 || static_cast<size_t>(number) >= watched->size()) return;
  Watched& module = (*watched)[static_cast<size_t>(number)];
  if (std::exchange(module.is_active, false)) --active_modules;
  if (active_modules == 0) ModuleSampling::instance().set_watched(false);
  const auto found = by_module->find(module.object);  // another one may have its address since
  if (found != by_module->end() && found->second == &module) by_module->erase(found);
  Py_CLEAR(module.reference);
  Py_CLEAR(module.enter);
  Py_CLEAR(module.leave);
}

/// The body of a weak reference's callback; `self` is the module's number.
PyObject* module_is_gone(PyObject* self, PyObject*) {
  unwatch_module(PyLong_AsLongLong(self));
  Py_RETURN_NONE;
}

PyMethodDef gone_definition = {"module_is_gone", module_is_gone, METH_O, nullptr};

/// A function whose `self` is a number, or null with a Python error set.
py::object numbered(PyMethodDef& definition, int64_t number) {
  const auto code = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
  return py::reinterpret_steal<py::object>(code ? PyCFunction_New(&definition, code.ptr())
                                                : nullptr);
}

/// A weak reference to a module, or nullptr with a Python error set.
PyObject* new_reference(PyObject* module, int64_t number) {
  const py::object callback = numbered(gone_definition, number);
  return callback ? PyWeakref_NewRef(module, callback.ptr()) : nullptr;
}

/// A watched module. Throws where there is none with this number.
Watched& at(int64_t number) {
  if (number >= 0 && static_cast<size_t>(number) < watched->size())
    return (*watched)[static_cast<size_t>(number)];
  throw py::value_error("no such module");
}

/// Called with each module that is called while no watched one is, until it returns True for it;
/// None: nothing is. An error of its own is reported as unraisable.
void set_root_function(py::handle function) {
  roots->clear();
  PyObject* const added = function.is_none() ? nullptr : Py_NewRef(function.ptr());
  Py_XDECREF(std::exchange(root_function, added));
}

/// Adds a module; -1 with a Python error set.
int64_t add_module(PyObject* module, PyObject* name, const WatchedModule* around) {
  std::string text;
  if (!encode_name(name, text)) return -1;
  Watched one{};
  one.module = names_of(text);
  if (around != nullptr && around->depth + 1 < kDeepest) {
    one.module.depth = static_cast<uint16_t>(around->depth + 1);
    one.module.parent = around;
  }
  one.nvtx = nvtx_name(text);
  const auto number = static_cast<int64_t>(watched->size());
  one.object = module;
  one.reference = new_reference(module, number);
  if (one.reference == nullptr) return -1;
  one.is_active = false;  // until it can be found
  watched->push_back(one);
  (*by_module)[module] = &watched->back();
  watched->back().is_active = true;
  ++active_modules;
  ModuleSampling::instance().set_watched(true);
  return number;
}

/// A module's calls are observed from now on. `parent` is the number of the innermost watched
/// module around it, or -1. Returns its number.
int64_t watch_module(py::handle module, py::handle name, int64_t parent) {
  if (!PyUnicode_Check(name.ptr())) throw py::type_error("a name must be a str");
  const WatchedModule* const around = parent >= 0 ? &at(parent).module : nullptr;
  if (active_modules == kMostModules) {
    PyErr_SetString(PyExc_OverflowError, "too many modules are watched");
    throw py::error_already_set();
  }
  const int64_t added =
      with_memory<int64_t>(kNoMemory, [=] { return add_module(module.ptr(), name.ptr(), around); });
  if (added == kNoMemory) PyErr_SetString(PyExc_MemoryError, "there is no memory");
  if (added < 0) throw py::error_already_set();
  return added;
}

/// `enter` and `leave` are the tensors whose hooks are the marks of a module.
void set_module_marks(int64_t number, py::handle enter, py::handle leave) {
  Watched& module = at(number);
  Py_XSETREF(module.enter, Py_NewRef(enter.ptr()));
  Py_XSETREF(module.leave, Py_NewRef(leave.ptr()));
}

/// The hooks of a mark.
py::dict new_module_mark(int64_t number, bool enters) {
  at(number);
  py::dict hooks;
  if (is_backward_compiled) return hooks;
  const py::object mark = numbered(mark_definition, 2 * number + (enters ? 1 : 0));
  if (!mark) throw py::error_already_set();
  hooks[py::int_(0)] = mark;
  hooks_of_marks->push_back(hooks.ptr());
  hooks.inc_ref();
  return hooks;
}

/// Whether it was called while a recording was active, timed or not.
bool was_module_called(int64_t number) {
  return number >= 0 && static_cast<size_t>(number) < watched->size() &&
         (*watched)[static_cast<size_t>(number)].was_called;
}

bool observe_modules(py::handle call, py::handle run_backward, py::handle grad_fn,
                     py::handle mode_count, py::handle without_modes) {
  if (Py_TYPE(grad_fn.ptr())->tp_descr_get == nullptr)
    throw py::type_error("a descriptor is needed");
  set_module_questions({grad_fn.ptr(), mode_count.ptr(), without_modes.ptr()});
  return observe_call(call.ptr(), ObserverOf::modules, the<WatchedCall>(), Called::from_c) &&
         observe_call(run_backward.ptr(), ObserverOf::modules, the<WatchedBackwardPass>());
}

}  // namespace

void add_module_functions(py::module_& module) {
  module.def("observe_modules", &observe_modules, py::kw_only(), "call"_a, "run_backward"_a,
             "grad_fn"_a, "mode_count"_a, "without_modes"_a);
  module.def("unobserve_modules", [] { unobserve_calls(ObserverOf::modules); });
  module.def("set_root_function", &set_root_function, "function"_a);
  module.def("watch_module", &watch_module, "module"_a, "name"_a, "parent"_a);
  module.def("set_module_marks", &set_module_marks, "number"_a, "enter"_a, "leave"_a);
  module.def("module_mark", &new_module_mark, "number"_a, "enters"_a);
  module.def("is_backward_compiled", [] { return is_backward_compiled; });
  module.def("unwatch_module", &unwatch_module, "number"_a);
  module.def("was_module_called", &was_module_called, "number"_a);
  module.def(
      "sample_modules", [](uint32_t every) { ModuleSampling::instance().choose(every); },
      "every"_a);
}

}  // namespace pig
