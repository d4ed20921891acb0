# SPDX-License-Identifier: Apache-2.0
"""`MetricAccumulator.update` as an operator, for torch.compile.

Eager updates do not pass through it: an operator's dispatch costs more than a small update does.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SCHEMA = (
    "metric_update(Tensor(a!) state, Tensor logits, Tensor target, Tensor? loss, Tensor? weight, "
    "int accumulator) -> ()"
)

Update = Callable[[Tensor, Tensor, Tensor, "Tensor | None", "Tensor | None", int], None]

_library: torch.library.Library | None = None


def register(update: Update) -> None:
    """Define the operator, once. Tracing has to find it, so this comes before."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("pyinstrument_gpu", "DEF")
    _library.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag,))
    _library.impl("metric_update", update, "CompositeExplicitAutograd")
    torch.library.register_fake("pyinstrument_gpu::metric_update", _fake, lib=_library)


def call(
    state: Tensor,
    logits: Tensor,
    target: Tensor,
    loss: Tensor | None,
    weight: Tensor | None,
    accumulator: int,
) -> None:
    """Call the operator: in a function that is being compiled, put it into the graph."""
    torch.ops.pyinstrument_gpu.metric_update(state, logits, target, loss, weight, accumulator)


def _fake(
    state: Tensor,
    logits: Tensor,
    target: Tensor,
    loss: Tensor | None,
    weight: Tensor | None,
    accumulator: int,
) -> None:
    """It returns nothing."""
