# SPDX-License-Identifier: Apache-2.0
"""Edits of the model: the first module with parameters to be trained that is called to train."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.trial.edits.edit import Changes, Edit, Facts, Hand, Value

if TYPE_CHECKING:
    import torch


class _ModelEdit(Edit):
    """What is done to the model at its first call."""

    group = "model"

    def reach(self, facts: Facts) -> float:
        return facts.compute_share

    def fits(self, model: torch.nn.Module) -> bool:
        return True

    def edit(self, model: torch.nn.Module) -> None:
        raise NotImplementedError

    def make(self, value: Value, hand: Hand) -> None:
        from torch.nn.modules.module import register_module_forward_pre_hook

        def called(module: torch.nn.Module, args: Any) -> None:
            # A transform of images is a module, too.
            is_model = module.training and any(one.requires_grad for one in module.parameters())
            if is_model and self.fits(module):
                handle.remove()
                if hand.meets(type(module).__name__, sys._getframe(1)):
                    self.edit(module)

        handle = register_module_forward_pre_hook(called)

    def where(self, value: Value) -> str:
        return "behind the making of the model"


class ChannelsLast(_ModelEdit):
    """Images with the channel as their innermost dimension."""

    name = "channels_last"
    changes = Changes.LAST_DIGITS

    def text(self, value: Value) -> str:
        return "model.to(memory_format=torch.channels_last), and the images"

    def fits(self, model: torch.nn.Module) -> bool:
        import torch

        return any(isinstance(module, torch.nn.Conv2d) for module in model.modules())

    def edit(self, model: torch.nn.Module) -> None:
        import torch

        layout = torch.channels_last

        def images(_: object, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                one.contiguous(memory_format=layout)
                if isinstance(one, torch.Tensor) and one.dim() == 4
                else one
                for one in args
            )

        model.to(memory_format=layout)  # type: ignore[call-overload]
        model.register_forward_pre_hook(images)


class Autocast(_ModelEdit):
    """The model's operations in bfloat16 where these allow it."""

    name = "autocast"
    group = "precision"
    changes = Changes.RESULTS

    def text(self, value: Value) -> str:
        return "torch.autocast(device, torch.bfloat16) around the call of the model"

    def where(self, value: Value) -> str:
        return "around the call"

    def edit(self, model: torch.nn.Module) -> None:
        import torch

        parameter = next(model.parameters(), None)
        device = "cpu" if parameter is None else parameter.device.type
        forward: Callable[..., Any] = model.forward

        def in_autocast(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=torch.bfloat16):
                return forward(*args, **kwargs)

        model.forward = in_autocast


class Compile(_ModelEdit):
    """The model compiled by torch.compile."""

    name = "compile"
    group = "compile"
    changes = Changes.LAST_DIGITS

    def reach(self, facts: Facts) -> float:
        has_compiler = any(map(shutil.which, ("c++", "g++", "clang++")))
        return facts.compute_share if has_compiler else 0.0

    def text(self, value: Value) -> str:
        return "torch.compile(model)"

    def edit(self, model: torch.nn.Module) -> None:
        model.compile()
