# SPDX-License-Identifier: Apache-2.0
"""Work to be done when the interpreter ends."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any


def call_at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Have a function called when this process ends. Returns what takes that back."""
    atexit.register(function)
    # A child of multiprocessing ends without atexit, but runs these.
    multiprocessing_util: Any = sys.modules.get("multiprocessing.util")
    finalizer = multiprocessing_util and multiprocessing_util.Finalize(
        None, function, exitpriority=0
    )

    def cancel() -> None:
        atexit.unregister(function)
        if finalizer is not None:
            finalizer.cancel()

    return cancel
