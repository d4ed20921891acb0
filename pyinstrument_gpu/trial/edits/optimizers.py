# SPDX-License-Identifier: Apache-2.0
"""Edits of optimizers: how they update their parameters, and how gradients are cleared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Hand, Value


class Implementation(Edit):
    """Another implementation of an optimizer's update."""

    name = "optimizer"
    group = "optimizer"
    changes = Changes.LAST_DIGITS

    def reach(self, facts: Facts) -> float:
        return facts.share("optimizer")

    def values(self, facts: Facts) -> Sequence[Value]:
        return ("fused", "foreach", "capturable") if facts.has_gpu else ("fused", "foreach")

    def text(self, value: Value) -> str:
        return f"the optimizer with {value}=True"

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {value: "True"}

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        def change(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return None if arguments.get(value) else {value: True}

        kinds = {one for one in vars(torch.optim).values() if isinstance(one, type)}
        for kind in kinds:
            if (
                issubclass(kind, torch.optim.Optimizer)
                and "__init__" in vars(kind)
                and value in inspect.signature(kind.__init__).parameters
            ):
                hand.replace(kind, "__init__", change)


class SetToNone(Edit):
    """Gradients that are dropped instead of filled with zeros."""

    name = "set_to_none"
    group = "optimizer"
    positions = MappingProxyType({"set_to_none": 0})
    changes = Changes.LAST_DIGITS
    """An update with zeros is one, of momentum for example; without a gradient there is none."""

    def reach(self, facts: Facts) -> float:
        return facts.share("zero_grad", "backward", "optimizer")

    def text(self, value: Value) -> str:
        return "zero_grad(set_to_none=True)"

    def keywords(self, value: Value) -> Mapping[str, str]:
        return {"set_to_none": "True"}

    def make(self, value: Value, hand: Hand) -> None:
        import torch

        def change(arguments: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return None if arguments.get("set_to_none", True) else {"set_to_none": True}

        for owner in (torch.optim.Optimizer, torch.nn.Module):
            hand.replace(owner, "zero_grad", change)
