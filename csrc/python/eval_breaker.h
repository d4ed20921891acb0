// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace pig {

/// Has the thread that has the GIL look soon for what is pending, as it does when another thread
/// wants the GIL. By any thread.
///
/// Up to Python 3.12 `Py_AddPendingCall` does that for the main thread alone: a call that another
/// thread adds waits until the main thread next gets the GIL.
void break_evaluation() noexcept;

}  // namespace pig
