# SPDX-License-Identifier: Apache-2.0
"""A way to add tensors to the state of an accumulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.metrics import operators
from pyinstrument_gpu.native import IMPORT_ERROR, native


class Addition:
    """One kind of update, which is done by native code, or by torch operations where that can't.

    In compiled functions it is the operator `torch.ops.pyinstrument_gpu.metric_<name>`.

    Args:
        name: that of the method of `_C.MetricAccumulator`, which takes the tensors after the state
            and the scratch.
        schema: the tensors, as in the schema of an operator.
        check: takes the options and the tensors. It raises a TypeError or ValueError unless they
            fit each other.
        reference: takes the state, the tensors and the options, and adds them.
    """

    __slots__ = ("check", "native", "reference")

    def __init__(
        self,
        name: str,
        schema: str,
        check: Callable[..., None],
        reference: Callable[..., None],
    ) -> None:
        # Looked up once: an update has no time for it.
        self.native: Any = (
            None if IMPORT_ERROR is not None else getattr(native.MetricAccumulator, name)
        )
        self.check = check
        self.reference = reference

        def update(accumulator: Any, state: Any, *tensors: Any) -> None:
            accumulator._add(self, state, *tensors)

        operators.define(f"metric_{name}", schema, update)
