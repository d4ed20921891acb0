// SPDX-License-Identifier: Apache-2.0
//
// The calls that reveal a training loop, and what each kind of them means.
#pragma once

#include <Python.h>

#include <optional>
#include <string_view>

#include "hooks/call_observer.h"

namespace pig {

/// Observes the calls of a function from now on. False where it can't be hooked; nothing where
/// there is no such kind of call.
std::optional<bool> observe_activity(PyObject* function, std::string_view kind);

CallObserver& compiled_call();  ///< Dynamo is switched on or off

/// optimizer_steps and optimizer_has_stepped: hooks for torch's optimizers.
extern PyMethodDef optimizer_functions[];

}  // namespace pig
