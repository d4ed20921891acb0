// SPDX-License-Identifier: Apache-2.0
//
// Alone in its translation unit: Python.h is another one for the interpreter itself.
#include "python/eval_breaker.h"

#include <Python.h>

#if PY_VERSION_HEX < 0x030D0000
#undef HAVE_STD_ATOMIC  // of C
#include <internal/pycore_interp.h>
#endif

namespace pig {

void break_evaluation() noexcept {
#if PY_VERSION_HEX < 0x030D0000
  __atomic_store_n(&PyInterpreterState_Main()->ceval.eval_breaker._value, 1, __ATOMIC_RELAXED);
#endif
}

}  // namespace pig
