// SPDX-License-Identifier: Apache-2.0
//
// Who enters and leaves phases. A task is a context (contextvars): an event loop resumes each of
// its tasks in one of its own, and greenlets carry theirs along as they switch. A greenlet that has
// none yet is given one, as the first variable that it sets would do.
#pragma once

#include <Python.h>

#include <cstdint>

#include "base/ticks.h"
#include "hot/frame.h"

namespace pig {

/// How a phase is entered or left.
enum class Use { kBlock, kCall, kToken };

/// For a thread that has no context. 0 where there is no memory for one.
uintptr_t make_task() noexcept;

/// Of the function that the interpreter executes. With the GIL.
template <Use use>
Caller caller_here() noexcept {
#if PY_VERSION_HEX >= 0x030D0000
  const PyThreadState* thread = PyThreadState_GetUnchecked();
  const void* function = thread->current_frame;
#elif PY_VERSION_HEX >= 0x030B0000
  const PyThreadState* thread = _PyThreadState_UncheckedGet();
  const void* function = thread->cframe->current_frame;
#else
  const PyThreadState* thread = _PyThreadState_UncheckedGet();
  const void* function = thread->frame;
#endif
  auto task = reinterpret_cast<uintptr_t>(thread->context);
  if (PIG_UNLIKELY(task == 0)) task = make_task();
  if (use == Use::kCall) return Caller::of_call(task);
  return {task, use == Use::kBlock ? reinterpret_cast<uintptr_t>(function) : 0};
}

/// Whether the function that is executed is a generator or a coroutine, which any thread may
/// resume.
bool is_in_generator() noexcept;

/// The recorder asks here about tasks.
void tell_tasks();

}  // namespace pig
