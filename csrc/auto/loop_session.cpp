// SPDX-License-Identifier: Apache-2.0
#include "auto/loop_session.h"

#include <frameobject.h>  // for Python 3.10

#include <algorithm>
#include <cmath>
#include <string>

#include "base/throwing.h"
#include "hooks/tensor_inspector.h"
#include "hot/nvtx_range.h"
#include "python/opener.h"
#include "python/phase_registry.h"
#include "python/phase_use.h"
#include "python/python_error.h"
#include "python/python_hooks.h"

namespace py = pybind11;

namespace pig {

thread_local uint64_t activity_session = 0;
thread_local const Phase* activity_phase = nullptr;
uint64_t session_number = 1;

namespace {

// The number of a loader tells its use as well, in the lower bits: an index into the uses, plus 1;
// 0 where its options are not known.
constexpr int kUseBits = 6;
constexpr uint64_t kMostUses = (uint64_t{1} << kUseBits) - 1;

/// A borrowed value of a module's or an object's dictionary; nullptr where there is none.
PyObject* value_of(PyObject* dictionary, PyObject* name) {
  PyObject* value = PyDict_GetItemWithError(dictionary, name);
  if (value == nullptr) PyErr_Clear();
  return value;
}

/// Whether a plain module or one inside it has a parameter. Nothing where one is not plain.
std::optional<bool> find_parameter(PyObject* module, int depth) {
  static PyObject* const parameters_name = PyUnicode_InternFromString("_parameters");
  static PyObject* const modules_name = PyUnicode_InternFromString("_modules");
  const auto names = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module, nullptr));
  if (!names) {
    PyErr_Clear();
    return std::nullopt;
  }
  PyObject* const parameters = value_of(names.ptr(), parameters_name);
  PyObject* const modules = value_of(names.ptr(), modules_name);
  if (depth == 0 || parameters == nullptr || modules == nullptr || !PyDict_Check(parameters) ||
      !PyDict_Check(modules))
    return std::nullopt;
  Py_ssize_t at = 0;
  PyObject *name, *value;
  while (PyDict_Next(parameters, &at, &name, &value) != 0)
    if (value != Py_None) return true;
  at = 0;
  std::optional<bool> found = false;
  while (found == false && PyDict_Next(modules, &at, &name, &value) != 0)
    if (value != Py_None) found = find_parameter(value, depth - 1);
  return found;
}

}  // namespace

LoopSession& LoopSession::instance() {
  static auto* const session = new LoopSession;  // threads may use it until the process ends
  return *session;
}

void LoopSession::begin(const LoopQuestions& questions, uint64_t main_thread, PyObject* on_step_end,
                        PyObject* on_first_call) {
  auto detector = std::make_unique<StepDetector>(static_cast<StepPort&>(*this), main_thread);
  if (callbacks_ > 0) (void)detector_.release();  // one of its methods is still running
  detector_ = std::move(detector);
  ++session_number;
  if (!(questions == ask_)) {
    // Kept for good: other threads may still be asking those of before.
    for (PyObject* each : {questions.loss_type, questions.is_grad_enabled, questions.has_parameters,
                           questions.samples_of, questions.loader_options, questions.times_written,
                           questions.is_trained_in_eval_mode, questions.are_of_one_iteration})
      Py_INCREF(each);
    ask_ = questions;
  }
  noted_.clear();
  loaders_.clear();
  iterators_.clear();
  optimizers_.clear();
  eval_calls_.clear();
  update_place_ = {};
  seen_apart_.clear();
  has_updated_in_backward = has_failed_ = false;
  PyObject* const before[] = {on_step_end_, on_first_call_};
  on_step_end_ = on_step_end != Py_None ? Py_NewRef(on_step_end) : nullptr;
  on_first_call_ = Py_NewRef(on_first_call);
  is_active_ = true;
  for (PyObject* one : before) Py_XDECREF(one);  // last: what goes with it may run any code
}

void LoopSession::end() {
  if (!is_active_) return;
  is_active_ = false;
  detector_->leave_alone();  // also where it is what has called us
  Py_CLEAR(on_step_end_);
  Py_CLEAR(on_first_call_);
  while (!updates_.empty()) end_innermost_update(updates_.back().thread);
}

void LoopSession::fail() {
  has_failed_ = true;
  if (!try_allocating([this] { detector_->leave_alone(); })) is_active_ = false;
}

// --- questions ---

py::object LoopSession::answer(PyObject* result) {
  if (result == nullptr) take_error();
  return py::reinterpret_steal<py::object>(result);
}

bool LoopSession::is_grad_enabled() {
  return answer(PyObject_CallNoArgs(ask_.is_grad_enabled)).ptr() != Py_False;
}

bool LoopSession::has_parameters(PyObject* module) {
  constexpr int kDeepest = 100;
  if (const std::optional<bool> found = find_parameter(module, kDeepest)) return *found;
  return answer(PyObject_CallOneArg(ask_.has_parameters, module)).ptr() == Py_True;
}

bool LoopSession::is_loss(PyObject* module) const {
  return PyType_IsSubtype(Py_TYPE(module), reinterpret_cast<PyTypeObject*>(ask_.loss_type)) != 0;
}

bool LoopSession::is_metric(PyObject* module) const {
  return std::any_of(metric_types_.begin(), metric_types_.end(), [module](PyTypeObject* type) {
    return type != nullptr && PyType_IsSubtype(Py_TYPE(module), type) != 0;
  });
}

void LoopSession::note_metric_type(PyObject* type) {
  auto* const wanted = reinterpret_cast<PyTypeObject*>(type);
  for (PyTypeObject*& known : metric_types_) {
    if (known == wanted) return;
    if (known != nullptr) continue;
    Py_INCREF(type);
    known = wanted;
    return;
  }
}

double LoopSession::samples_of(PyObject* item) {
  // Borrowed all along: nothing here runs code that could let go of them.
  for (int depth = 0; depth < 8; ++depth) {
    const PyTypeObject* type = Py_TYPE(item);
    if (type == &PyDict_Type) {
      Py_ssize_t at = 0;
      PyObject *key, *value;
      if (PyDict_Next(item, &at, &key, &value) == 0) return NAN;
      item = value;
    } else if (type == &PyList_Type && PyList_GET_SIZE(item) > 0) {
      item = PyList_GET_ITEM(item, 0);
    } else if (type == &PyTuple_Type && PyTuple_GET_SIZE(item) > 0) {
      item = PyTuple_GET_ITEM(item, 0);
    } else {
      break;
    }
  }
  int64_t rows;
  if (tensor_inspector.has_rows(item, rows)) return static_cast<double>(rows);
  const auto kept = py::reinterpret_borrow<py::object>(item);
  const py::object samples = answer(PyObject_CallOneArg(ask_.samples_of, item));
  const double number = samples ? PyFloat_AsDouble(samples.ptr()) : NAN;
  take_error();
  return number;
}

void LoopSession::look_at_eval_calls() {
  if (PIG_LIKELY(!eval_calls_.are_open())) return;
  const ErrorAside aside;  // of a backward pass that has failed
  eval_calls_.after_backward(ask_.is_trained_in_eval_mode);
  take_error();
}

void LoopSession::note_line(const Phase& phase) {
  if (PIG_LIKELY(phase.id < noted_.size() && noted_[phase.id])) return;
  const bool has_room = try_allocating([&] {
    if (phase.id >= noted_.size()) noted_.resize(phase.id + 1);
  });
  if (!has_room) return;
  noted_[phase.id] = true;
  if (on_first_call_ == nullptr) return;
  const auto on_first_call = py::reinterpret_borrow<py::object>(on_first_call_);
  answer(PyObject_CallOneArg(on_first_call.ptr(), phase.name));
}

// --- loaders and optimizers ---

uint64_t LoopSession::number_of_loader(PyObject* loader) {
  if (const uint64_t* known = loaders_.find(loader)) return *known;
  const uint64_t use = use_of(loader);
  const uint64_t number = ++last_number_ << kUseBits | use;
  return loaders_.add(loader, number) != nullptr ? number : 0;
}

uint64_t LoopSession::use_of(PyObject* loader) {
  py::object options = answer(PyObject_CallOneArg(ask_.loader_options, loader));
  if (!options || options.is_none()) return 0;
  for (size_t i = 0; i < loader_uses_.size(); ++i) {
    const int is_same = PyObject_RichCompareBool(loader_uses_[i].options, options.ptr(), Py_EQ);
    if (is_same < 0) take_error();
    if (is_same > 0) return i + 1;
  }
  if (loader_uses_.size() == kMostUses) return 0;
  loader_uses_.push_back({options.ptr()});
  options.release();  // for good
  return loader_uses_.size();
}

void LoopSession::step_is_fed(uint64_t loader) {
  if (const uint64_t use = loader & kMostUses) ++loader_uses_[use - 1].steps;
}

void LoopSession::draws_from(uint64_t loader) {
  if (const uint64_t use = loader & kMostUses) ++loader_uses_[use - 1].draws;
}

void LoopSession::forget_loader_uses() {
  for (LoaderUse& use : loader_uses_) use.steps = use.draws = 0;
}

void LoopSession::note_iterator(PyObject* iterator, Iterator of) { iterators_.add(iterator, of); }

LoopSession::Iterator LoopSession::iterator(PyObject* iterator) {
  const Iterator* known = iterators_.find(iterator);
  return known != nullptr ? *known : Iterator{};
}

uint64_t LoopSession::number_of_optimizer(PyObject* optimizer) {
  if (const Optimizer* known = optimizers_.find(optimizer)) return known->number;
  const uint64_t number = ++last_number_;
  return optimizers_.add(optimizer, {number, nullptr}) != nullptr ? number : 0;
}

const Phase* LoopSession::phase_of_optimizer(PyObject* optimizer) {
  number_of_optimizer(optimizer);
  Optimizer* known = optimizers_.find(optimizer);
  if (known != nullptr && known->phase != nullptr) return known->phase;
  const size_t others =
      optimizers_.count([](const Optimizer& other) { return other.phase != nullptr; });
  std::string name = "optimizer";
  if (others > 0) name.append(" ").append(std::to_string(others + 1));
  const Phase* phase = phase_named(name.c_str());
  if (known != nullptr) known->phase = phase;
  return phase;
}

// --- steps of optimizers ---

bool LoopSession::is_updating() {
  // The hooks of an optimizer are not called when its step raises an exception. Its function
  // is then no longer among the callers.
  const unsigned long thread = PyThread_get_thread_ident();
  const auto is_here = [thread](const Update& update) { return update.thread == thread; };
  for (;;) {
    const auto innermost = std::find_if(updates_.rbegin(), updates_.rend(), is_here);
    if (innermost == updates_.rend()) return false;
    if (PyFrameObject* frame = frame_on_stack(innermost->frame)) {
      Py_DECREF(frame);
      return true;
    }
    end_innermost_update(thread);
  }
}

void LoopSession::begin_update(PyObject* optimizer) {
  const bool is_nested = is_updating();
  const uint64_t number = number_of_optimizer(optimizer);
  if (!is_nested) detector_->begins_update(number);
  if (!is_active_) return;  // it may have ended the session
  const Phase* phase = phase_of_optimizer(optimizer);
  PyFrameObject* frame = PyEval_GetFrame();
  if (phase == nullptr || frame == nullptr) return;
  note_line(*phase);
  updates_.reserve(updates_.size() + 1);
  nvtx_push(phase->nvtx);
  Py_INCREF(frame);
  updates_.push_back({PyThread_get_thread_ident(), phase, begin_token(*phase), frame});
}

void LoopSession::end_update(PyObject* optimizer) {
  const unsigned long thread = PyThread_get_thread_ident();
  end_innermost_update(thread);
  const bool is_nested = std::any_of(updates_.begin(), updates_.end(),
                                     [thread](const Update& it) { return it.thread == thread; });
  if (!is_nested && is_active_) detector_->ends_update(number_of_optimizer(optimizer));
}

std::vector<LoopSession::Written> LoopSession::written_to() {
  constexpr size_t kMostAsked = 16;
  std::vector<Written> result;
  if (detector_->is_left_alone()) return result;
  // The answers run Python code, which may change the table.
  std::vector<std::pair<py::object, uint64_t>> optimizers;
  optimizers_.for_each([&](py::handle optimizer, const Optimizer& known) {
    if (optimizers.size() < kMostAsked)
      optimizers.emplace_back(py::reinterpret_borrow<py::object>(optimizer), known.number);
  });
  for (const auto& [optimizer, number] : optimizers) {
    const py::object times = answer(PyObject_CallOneArg(ask_.times_written, optimizer.ptr()));
    if (times) result.push_back({number, PyLong_AsUnsignedLongLongMask(times.ptr())});
    take_error();
  }
  return result;
}

void LoopSession::note_updates_since(const std::vector<Written>& before) {
  if (before.empty()) return;
  for (const Written& now : written_to()) {
    const bool is_written = std::any_of(before.begin(), before.end(), [&](const Written& then) {
      return then.optimizer == now.optimizer && then.times != now.times;
    });
    if (!is_written || !is_active_) continue;
    detector_->begins_update(now.optimizer);
    detector_->ends_update(now.optimizer);
  }
}

void LoopSession::end_innermost_update(unsigned long thread) {
  for (size_t i = updates_.size(); i-- > 0;) {
    if (updates_[i].thread != thread) continue;
    const Update update = updates_[i];
    updates_.erase(updates_.begin() + static_cast<ptrdiff_t>(i));
    nvtx_pop(update.phase->nvtx);
    end_token(update.token, Closing::kEnd);
    Py_DECREF(update.frame);  // last: its locals may go with it
    return;
  }
}

// --- errors ---

void LoopSession::take_error() {
  if (PyErr_Occurred() == nullptr) return;
  if (PyErr_ExceptionMatches(PyExc_Exception) != 0) {
    PyErr_Clear();
    return;
  }
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (value != nullptr && traceback != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  Py_XSETREF(kept_error_, value);
}

bool LoopSession::raise_kept_error() {
  if (PIG_LIKELY(kept_error_ == nullptr)) return false;
  PyObject* error = kept_error_;
  kept_error_ = nullptr;
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
  Py_DECREF(error);
  return true;
}

// --- the detector's port ---

int64_t LoopSession::step_begin() {
  ++callbacks_;
  // The hooks belong to a recording.
  if (active_epoch.load(std::memory_order_relaxed) != 0) {
    run_due_hooks();
    run_step_calls();
  }
  --callbacks_;
  return begin_step();
}

size_t LoopSession::optimizer_count() {
  return optimizers_.count([](const Optimizer&) { return true; });
}

void LoopSession::step_has_ended() {
  if (on_step_end_ == nullptr) return;
  const ErrorAside aside;  // a step may end as a call has failed
  const auto on_step_end = py::reinterpret_borrow<py::object>(on_step_end_);
  ++callbacks_;
  answer(PyObject_CallNoArgs(on_step_end.ptr()));
  --callbacks_;
}

std::optional<bool> LoopSession::goes_on_after_update() {
  constexpr size_t kMostSeen = 64;
  ProgramPlace here;
  here.take();
  std::optional<ProgramPlace::Apart> apart = update_place_.until(here);
  if (!apart) return std::nullopt;
  if (apart->now < apart->before) return false;
  for (const auto& [places, answer] : seen_apart_)
    if (places.code.is(apart->code) && places.before == apart->before && places.now == apart->now)
      return answer;
  const ErrorAside aside;
  const py::object answered = answer(PyObject_CallFunction(
      ask_.are_of_one_iteration, "Oii", apart->code.ptr(), apart->before, apart->now));
  if (!answered) return std::nullopt;
  if (seen_apart_.size() == kMostSeen) seen_apart_.clear();
  seen_apart_.push_back({std::move(*apart), answered.is(py::bool_(true))});
  return seen_apart_.back().are_of_one_iteration;
}

const Phase* phase_named(const char* name) {
  const Phase* phase = find_phase(name);
  PyErr_Clear();
  return phase;
}

uint64_t begin_activity(const Phase& phase) {
  activity_session = session_number;
  activity_phase = &phase;
  nvtx_push(phase.nvtx);
  return begin_token(phase);
}

void end_activity(const Phase& phase, uint64_t token) {
  activity_session = 0;
  nvtx_pop(phase.nvtx);
  end_token(token, Closing::kEnd);
}

}  // namespace pig
