// SPDX-License-Identifier: Apache-2.0
//
// The kinds of calls that reveal a training loop. Each lives as long as the process.
#pragma once

#include <cmath>

#include "auto/activity.h"

namespace pig {

CallObserver& module_call();     ///< `Module.__call__`
CallObserver& loader_start();    ///< `DataLoader.__iter__`
CallObserver& next_item();       ///< `__next__` of a loader's iterator
CallObserver& backward_pass();   ///< `run_backward` of autograd's engine
CallObserver& scaler_step();     ///< `GradScaler.step`
CallObserver& optimizer_made();  ///< `Optimizer.__init__`
CallObserver& zero_grad();
CallObserver& loss();
CallObserver& clip();
CallObserver& scheduler_step();
CallObserver& checkpoint();     ///< `torch.save`
CallObserver& compiled_call();  ///< Dynamo is switched on or off

/// optimizer_steps and optimizer_has_stepped: hooks for torch's optimizers.
extern PyMethodDef optimizer_functions[];

}  // namespace pig
