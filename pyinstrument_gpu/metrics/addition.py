# SPDX-License-Identifier: Apache-2.0
"""A way to add tensors to the state of an accumulator, and how they come to it: as an operator of a
compiled function, or as the part of a DTensor that this rank has.

Eager updates do not pass through the operators: their dispatch costs more than a small update does.
"""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.utils.checkpoint

from pyinstrument_gpu.metrics.options import MetricOptions
from pyinstrument_gpu.native import IMPORT_ERROR, native
from pyinstrument_gpu.patching import dynamo

accumulators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All that are alive, by the number that stands for one in a compiled function."""

_numbers = itertools.count(1)
_library = torch.library.Library("pyinstrument_gpu", "DEF")

_graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)
"""The backward pass that the calling thread is in; -1 for none."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def never_compiled(function: _Function) -> _Function:
    """Have torch.compile leave a function out of its graphs, and run it and all that it calls as
    they are. `torch.compiler.disable` would do the same, but at a cost for each call, and it
    imports the compiler."""
    marks: Any = function
    marks._torchdynamo_disable = True
    marks._torchdynamo_disable_msg = (
        "metrics can be updated in compiled code, but not read, reset or saved: do that outside"
    )
    dynamo.skip([marks.__code__])
    return function


def is_recomputing() -> bool:
    """Return whether a backward pass runs the caller once more, by `torch.utils.checkpoint`.
    PyTorch covers the backward pass only; hooks run in one too, and what they add is new."""
    if _graph_task() == -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file == torch.utils.checkpoint.__file__:
            return True
        if file == torch.autograd.graph.__file__:
            return False  # a hook: a backward pass of its own is nearer than any recomputation
        frame = frame.f_back
    return False


def number(accumulator: Any) -> int:
    """A number for an accumulator that is new."""
    new = next(_numbers)
    accumulators[new] = accumulator
    return new


def define(name: str, arguments: str, update: Callable[..., None]) -> Any:
    """Define `torch.ops.pyinstrument_gpu.<name>(state, <arguments>, number)`, which calls
    `update(accumulator, state, <arguments>)`, and return it.

    Args:
        arguments: as in an operator's schema, such as "Tensor logits, Tensor? weight".
    """
    _library.define(
        f"{name}(Tensor(a!) state, {arguments}, SymInt accumulator) -> ()",
        tags=(torch.Tag.pt2_compliant_tag,),
    )

    def call(*values: Any) -> None:
        if not is_recomputing():
            update(accumulators[values[-1]], *values[:-1])

    _library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"pyinstrument_gpu::{name}", lambda *values: None, lib=_library)
    return getattr(torch.ops.pyinstrument_gpu, name)


class Addition:
    """A kind of update, which is done by native code, or by torch operations where that can't.

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

        self.operator = define(f"metric_{name}", schema, update)

    def local(self, options: MetricOptions, tensors: Sequence[Any]) -> Sequence[Any]:
        """The parts of distributed tensors that this rank has. Raises ValueError where they mean
        nothing by themselves."""
        if not has_distributed(tensors):
            return tensors
        whole_dims: list[int | None] = [None] * len(tensors)
        if self._whole_axis is not None:
            whole_dims[0] = self._whole_axis(options, getattr(tensors[0], "ndim", 0))
        return [local(*each) for each in zip(tensors, self._names, whole_dims, strict=True)]


def has_distributed(tensors: Sequence[Any]) -> bool:
    """Return whether one of the tensors is a DTensor."""
    # Without the module there are none.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and any(isinstance(each, module.DTensor) for each in tensors)


def local(tensor: Any, name: str, whole_dim: int | None = None) -> Any:
    """The part of a DTensor that this rank has; other things as they are.

    Args:
        whole_dim: a dimension of which each rank must have all.

    Raises:
        ValueError: the parts mean nothing by themselves.
    """
    if not has_distributed([tensor]):
        return tensor
    for placement in tensor.placements:
        # Parts whose mean is the value are means of what each rank has.
        if placement.is_partial() and placement.reduce_op != "avg":
            raise ValueError(
                f"{name} is a DTensor whose parts have still to be added up, with placements "
                f"{tensor.placements}: pass {name}.full_tensor()"
            )
        if whole_dim is not None and getattr(placement, "dim", None) == whole_dim:
            raise ValueError(
                f"{name} is a DTensor that is sharded over the classes, dimension {whole_dim} of "
                f"{tuple(tensor.shape)}, so no rank has a whole row: pass "
                f"{name}.redistribute(placements=...) with Replicate() for {placement}"
            )
    with torch.no_grad():  # or it would be a node of the graph
        return tensor.to_local()
