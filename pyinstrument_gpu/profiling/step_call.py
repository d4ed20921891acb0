# SPDX-License-Identifier: Apache-2.0
"""Calls between two steps that keep nothing alive: where no such step comes, they stay behind."""

from __future__ import annotations

import weakref
from collections.abc import Callable

from pyinstrument_gpu.native import native


def call_before_step(method: Callable[[], None], after: int = 0) -> None:
    """`native.call_before_step`, as long as the object of the method exists."""
    weak = weakref.WeakMethod(method)

    def call() -> None:
        found = weak()
        if found is not None:
            found()

    native.call_before_step(call, after=after)
