# SPDX-License-Identifier: Apache-2.0
"""A way to add tensors to the state of an accumulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pyinstrument_gpu.metrics import operators
from pyinstrument_gpu.metrics.accumulator_options import AccumulatorOptions
from pyinstrument_gpu.metrics.distributed_tensors import has_distributed, local
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
        whole_axis: takes the options and the number of dimensions of the first tensor, and returns
            the one of which a rank must have all.
    """

    __slots__ = ("_names", "_whole_axis", "check", "native", "operator", "reference")

    def __init__(
        self,
        name: str,
        schema: str,
        check: Callable[..., None],
        reference: Callable[..., None],
        whole_axis: Callable[..., int] | None = None,
    ) -> None:
        # Looked up once: an update has no time for it.
        self.native: Any = (
            None if IMPORT_ERROR is not None else getattr(native.MetricAccumulator, name)
        )
        self.check = check
        self.reference = reference
        self._names = [each.split()[-1] for each in schema.split(",")]
        self._whole_axis = whole_axis

        def update(accumulator: Any, state: Any, *tensors: Any) -> None:
            accumulator._add(self, *tensors, state=state)

        self.operator = operators.define(f"metric_{name}", schema, update)

    def local(self, options: AccumulatorOptions, tensors: Sequence[Any]) -> Sequence[Any]:
        """The parts of distributed tensors that this rank has. Raises ValueError where they mean
        nothing by themselves."""
        if not has_distributed(tensors):
            return tensors
        whole_dims: list[int | None] = [None] * len(tensors)
        if self._whole_axis is not None:
            whole_dims[0] = self._whole_axis(options, getattr(tensors[0], "ndim", 0))
        return [local(*each) for each in zip(tensors, self._names, whole_dims, strict=True)]
