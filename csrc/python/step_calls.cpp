// SPDX-License-Identifier: Apache-2.0
#include "python/step_calls.h"

#include <utility>
#include <vector>

#include "base/ticks.h"
#include "python/python_hooks.h"
#include "record/parts.h"
#include "record/recording_thread.h"

namespace pig {
namespace {

struct StepCall {
  PyObject* function;
  uint64_t after;
};

// Guarded by the GIL.
std::vector<StepCall>* waiting_calls = new std::vector<StepCall>;

}  // namespace

void call_before_step(PyObject* function, uint64_t after) {
  const bool is_added = with_memory(false, [=] {
    waiting_calls->push_back({function, after});
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
  std::erase_if(*waiting_calls, [&due](StepCall& call) {
    if (call.after-- > 0) return false;
    due.push_back(call.function);
    return true;
  });
  for (PyObject* function : due) {
    call_unraisably(function);
    Py_DECREF(function);
  }
}

}  // namespace pig
