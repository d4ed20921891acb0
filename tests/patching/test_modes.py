# SPDX-License-Identifier: Apache-2.0
"""What classes and modes that listen to torch hear: what the program calls, and no more."""

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.modules.watch import RootWatch
from tests.helpers.hooked import WAYS, seen_alike
from tests.helpers.training import Training

Heard = list[tuple[Any, ...]]


def told(value: Any) -> Any:
    """A value as far as it is the same in every training."""
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *map(told, value))
    if isinstance(value, dict):
        return {key: told(one) for key, one in value.items()}
    if isinstance(value, Tensor):
        return type(value).__name__, tuple(value.shape), str(value.dtype)
    return value if isinstance(value, (int, float, str, torch.dtype)) else type(value).__name__


class Functions(TorchFunctionMode):
    def __init__(self, heard: Heard) -> None:
        super().__init__()
        self.heard = heard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append((func, told(args), told(kwargs), types))
        return func(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self, heard: Heard) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.heard = heard

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.heard.append((func, told(args), told(kwargs), types))
        return func(*args, **(kwargs or {}))


def waits() -> None:
    x = torch.tensor([1.0, 0.0])
    x.tolist(), x.to("cpu"), x.to(torch.float64), x[x > 0], x.nonzero(), torch.unique(x)
    x.sum().item(), float(x[0]), bool(x[1]), repr(x), f"{x[0]}", 1.0 in x, x.cpu()
    torch.where(x), torch.equal(x, x), x.copy_(torch.ones(2)), torch.bincount(x.long())
    x.repeat_interleave(torch.tensor([1, 2])), x.allclose(x), torch.unique_consecutive(x)
    x[x > 0] = 1.0
    x[0] = 2.0


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_a_mode_sees_the_same(mode: type[Functions] | type[Operators]) -> None:
    def observe() -> Heard:
        training, heard = Training(), Heard()
        with mode(heard):
            training.run()
            waits()
        return heard

    assert len(seen_alike(observe, *WAYS.values())) > 200


@contextlib.contextmanager
def checked() -> Iterator[None]:
    """With modules timed, and all values checked, in each step."""
    modules = RootWatch("all", 1)
    modules.begin()
    try:
        with pig.record(nonfinite=1) as recording:
            yield
    finally:
        modules.end()
    assert recording.run.modules["0"].calls == 3
    assert recording.run.nonfinite is not None
    assert recording.run.nonfinite.checked_steps == 3


@pytest.mark.parametrize("around", ["each step", "all steps"])
@pytest.mark.parametrize("mode", [Functions, Operators])
def test_a_mode_hears_nothing_of_modules_and_of_checked_values(
    mode: type[Functions] | type[Operators], around: str
) -> None:
    def observe() -> Heard:
        model, heard = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.BatchNorm1d(4)), Heard()
        with mode(heard) if around == "all steps" else contextlib.nullcontext():
            for _ in range(3):
                with pig.gpu_step(), mode(heard):
                    model(torch.ones(3, 4)).sum().backward()
        return heard

    seen_alike(observe, checked)


class Listening(Tensor):
    """A class that sees its functions and operators."""

    heard: ClassVar[Heard] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.heard.append((func, len(args), kwargs))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Wrapping(Tensor):
    """A class that is made of another tensor, and computes nothing itself."""

    heard: ClassVar[Heard] = []
    held: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Wrapping":
        made: Wrapping = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.held = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return "Wrapping"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        cls.heard.append((func, len(args), kwargs))
        found = func(*(a.held if isinstance(a, cls) else a for a in args), **(kwargs or {}))
        return cls(found) if isinstance(found, Tensor) else found


def test_classes_hear_the_same() -> None:
    def observe() -> list[Any]:
        Listening.heard.clear()
        Wrapping.heard.clear()
        x = torch.tensor([[1.0, 0.0]])
        listening, wrapping = x.as_subclass(Listening), Wrapping(x)
        model = nn.Linear(2, 2)
        found = [
            type(model(listening)),
            type(listening.to(torch.float64)),
            type(listening.to("cpu")),
            listening[listening > 0].tolist(),
            listening.sum().item(),
            type(nn.functional.mse_loss(listening, listening)),
            repr(listening),
            type(wrapping + 1),
            type(wrapping.to(torch.float64)),
            type(wrapping[0]),
            type(nn.MSELoss()(wrapping, wrapping)),
            bool((wrapping.sum() == 1).item()),
        ]
        return [*found, list(Listening.heard), list(Wrapping.heard)]

    seen_alike(observe, *WAYS.values())
