// SPDX-License-Identifier: Apache-2.0
#include "python/python_hooks.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/ticks.h"
#include "python/python_error.h"
#include "record/parts.h"

namespace pig {

PythonHooks python_hooks;

namespace {

/// An exception on its way to the program.
struct Raised {
  PyObject *type, *value, *traceback;

  static int raise(void* raised) {
    const std::unique_ptr<Raised> own(static_cast<Raised*>(raised));
    PyErr_Restore(own->type, own->value, own->traceback);
    return -1;
  }
};

/// Has the main thread, which alone runs signal handlers, raise the current exception in its
/// interpreter loop. False, with the exception set, where that can't be.
bool raise_in_program() {
  auto* const raised = with_memory<Raised*>(nullptr, [] { return new Raised; });
  if (raised == nullptr) return false;
  PyErr_Fetch(&raised->type, &raised->value, &raised->traceback);
  if (gettid() == getpid() && Py_AddPendingCall(Raised::raise, raised) == 0) return true;
  Raised::raise(raised);
  return false;
}

}  // namespace

std::string current_thread_name() {
  std::string name;
  if (python_hooks.thread_name == nullptr) return name;
  const ErrorAside aside;  // drops our own error: a name is not worth one
  if (PyObject* text = PyObject_CallNoArgs(python_hooks.thread_name)) {
    if (const char* utf8 = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr) name = utf8;
    Py_DECREF(text);
  } else if (PyErr_ExceptionMatches(PyExc_Exception) == 0) {
    raise_in_program();
  }
  constexpr size_t kLongest = 256;
  if (name.size() > kLongest) name.clear();
  return name;
}

void call_unraisably(PyObject* function) {
  PyObject* result = PyObject_CallNoArgs(function);
  Py_XDECREF(result);
  if (result != nullptr || drop_memory_error()) return;
  // No `Exception`: a signal handler wants the program to stop, and not this. With warnings as
  // errors, too, the call raises: into nobody's training loop.
  if (PyErr_ExceptionMatches(PyExc_Exception) != 0 || !raise_in_program())
    PyErr_WriteUnraisable(function);
}

namespace {

/// A hook that is called once by whoever comes first: the main thread from its interpreter loop, or
/// a thread that begins a step. The main thread may do nothing but wait for that one.
struct PendingHook {
  size_t notice;
  std::atomic<bool> due{false};
  std::atomic<bool> queued{false};  ///< with the interpreter

  void schedule() {
    due.store(true);
    // It refuses when too many calls are pending already.
    if (!queued.exchange(true) && Py_AddPendingCall(call, this) != 0) queued.store(false);
  }
  static int call(void* pending) {
    auto& self = *static_cast<PendingHook*>(pending);
    self.queued.store(false);
    self.run_if_due();
    return 0;
  }
  void run_if_due() {
    if (!due.load(std::memory_order_relaxed) || !due.exchange(false)) return;
    if (PyObject* function = python_hooks.notices[notice]) call_unraisably(function);
  }
};

/// Those of a stall and before it are called by a thread of their own.
PendingHook pending_hooks[5] = {{0}, {1}, {2}, {3}, {4}};

struct StepCall {
  PyObject* function;
  int64_t after;
  /// The index of the step from which `after` counts, once that is known. Steps that begin can't be
  /// counted instead, as some are dropped.
  int64_t first = -1;
};

// Guarded by the GIL.
std::vector<StepCall>* waiting_calls = new std::vector<StepCall>;

}  // namespace

void schedule_hook(Notice notice) { pending_hooks[static_cast<size_t>(notice)].schedule(); }

void run_due_hooks() {
  for (PendingHook& hook : pending_hooks) hook.run_if_due();
}

void call_before_step(PyObject* function, uint64_t after) {
  const bool is_added = with_memory(false, [=] {
    waiting_calls->push_back({function, static_cast<int64_t>(after)});
    return true;
  });
  if (is_added) Py_INCREF(function);
}

void forget_step_calls() {
  const std::vector<StepCall> forgotten = std::exchange(*waiting_calls, {});
  for (const StepCall& call : forgotten) Py_DECREF(call.function);
}

void run_step_calls() {
  if (PIG_LIKELY(waiting_calls->empty())) return;
  // A step within a step is a phase, and one whose cost is measured is none of the program's.
  if (parts().is_scratch() || parts().steps().open()) return;
  // A function may ask for another call, before a later step than this one.
  std::vector<PyObject*> due;
  const bool has_room = with_memory(false, [&due] {
    due.reserve(waiting_calls->size());
    return true;
  });
  if (!has_room) return;  // before the next one
  const int64_t next = parts().steps().next_index();
  std::erase_if(*waiting_calls, [&due, next](StepCall& call) {
    if (call.first < 0) call.first = next;
    if (next - call.first < call.after) return false;
    due.push_back(call.function);
    return true;
  });
  for (PyObject* function : due) {
    call_unraisably(function);
    Py_DECREF(function);
  }
  // What they have asked for comes after this step.
  for (StepCall& call : *waiting_calls)
    if (call.first < 0) call.first = next + 1;
}

}  // namespace pig
