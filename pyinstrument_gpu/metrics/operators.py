# SPDX-License-Identifier: Apache-2.0
"""Updates as operators, for torch.compile.

Eager updates do not pass through them: an operator's dispatch costs more than a small update does.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from pyinstrument_gpu.metrics.recomputation import is_recomputing

accumulators: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
"""All that are alive, by the number that stands for one in a compiled function."""

_numbers = itertools.count(1)
_library = torch.library.Library("pyinstrument_gpu", "DEF")


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
