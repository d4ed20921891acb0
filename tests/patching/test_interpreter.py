# SPDX-License-Identifier: Apache-2.0
"""What a program learns from the interpreter: its calls, its objects, their references."""

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.growth import assert_leaves_nothing
from tests.helpers.hooked import WAYS, Hooked, seen_alike, with_everything
from tests.helpers.training import Training

OURS = "pyinstrument_gpu"
WITH_HOOKS = (torch.optim.Optimizer.profile_hook_step(torch.optim.SGD.step).__code__,)
"""What calls the hooks of optimizers that torch itself offers, of which automatic phases use two;
so it does more in itself."""


class Listener:
    """Notes what the interpreter tells a profiler or a debugger.

    Attributes:
        heard: what it told, apart from functions of ours and what they call.
        ours: what it told of those.
    """

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, str]] = []
        self.ours: list[str] = []

    def __call__(self, frame: Any, event: str, argument: Any) -> "Listener":
        code, at = frame.f_code, frame
        while at is not None and OURS not in at.f_code.co_filename.split("/"):
            at = at.f_back
        name = getattr(argument, "__name__", "") if event.startswith("c_") else code.co_name
        if at is None and not (code in WITH_HOOKS and event in ("line", "c_call", "c_return")):
            self.heard.append((event, code.co_filename, name))
        elif at is not None:
            self.ours.append(f"{code.co_filename} {name}")
        return self


pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("set_listener", [sys.setprofile, sys.settrace])
def test_the_interpreter_tells_of_the_same_calls(set_listener: Callable[[Any], None]) -> None:
    def observe() -> list[tuple[str, str, str]]:
        training, listener = Training(steps=1), Listener()
        gc.disable()  # it may call functions of Python, too
        set_listener(listener)
        try:
            training.run()
        finally:
            set_listener(None)
            gc.enable()
        return listener.heard

    assert len(seen_alike(observe, *WAYS.values())) > 500


def test_objects_do_not_grow_with_the_steps() -> None:
    training = Training()
    with with_everything():
        assert_leaves_nothing(training.run)


def keywords_of(dtype: torch.dtype) -> dict[str, Any]:
    return {"dtype": dtype}


def test_references_are_given_back(hooked: Hooked) -> None:
    x = torch.ones(2, 4)
    mask, index, target = x > 0, torch.tensor([1]), torch.ones(2, 4)
    training = Training()
    module, dtype, anything = nn.Linear(4, 4), torch.float64, keywords_of(torch.float64)
    given = [x, mask, index, target, module, dtype, anything, training.optimizer, training.loader]
    given += [training.model, training.scaler, training.scheduler, torch.where]
    given += [nn.Module.__call__, torch.Tensor.__dict__, nn.Module, torch.Tensor]
    given += [torch.Tensor.item, torch.is_grad_enabled, None]

    def act() -> None:
        training.run()
        for _ in range(10):
            x[mask], x[index], x[mask, ...].sum().item(), x.to(dtype), x.to(**anything)
            x[mask] = 1.0
            x[index] = x[index]
            torch.where(mask), torch.where(mask, x, target), x.copy_(target), x.equal(target)
            torch.unique(x), torch.nonzero(mask), nn.MSELoss()(module(x), target).backward()
            module.zero_grad()
            for act in (lambda: x[target], lambda: x.item(), lambda: torch.where(1)):  # type: ignore[call-overload]
                with pytest.raises((IndexError, RuntimeError, TypeError)):
                    act()
            with pytest.raises(RuntimeError):
                module(index)

    def references() -> list[int]:
        gc.collect()
        return [sys.getrefcount(one) for one in given[:-1]]

    with hooked():  # which holds for good what it once has hooked
        act()
    before = references()
    with hooked():
        act()
        held = references()
        act()
        assert references() == held  # hooks may hold what they hook, and no more for each call
    assert references() == before
