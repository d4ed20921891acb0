# SPDX-License-Identifier: Apache-2.0
"""Errors of a program and of torch under the hooks: their texts and lines, and where they are."""

import io
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.helpers.hooked import WAYS, seen_alike
from tests.helpers.training import Model, Training

PROGRAMS: dict[str, Callable[[], object]] = {}


def program(function: Callable[[], object]) -> Callable[[], object]:
    PROGRAMS[function.__name__] = function
    return function


class Mistake(Exception):
    """What a program raises."""


def fail(*_: Any, **__: Any) -> Any:
    raise Mistake("of the program")


class Failing(nn.Module):
    def __init__(self, error: BaseException | None = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.error = error or Mistake("in forward")

    def forward(self, x: Tensor) -> Tensor:
        raise self.error


@program
def in_forward_without_gradients() -> None:
    with torch.no_grad():
        nn.Sequential(Failing())(torch.ones(1))


@program
def module_without_init() -> None:
    class Hollow(nn.Module):
        def __init__(self) -> None:
            pass

    Hollow()(torch.ones(1))


@program
def forward_hook() -> None:
    model = Model()
    model.body.register_forward_hook(fail)
    model(torch.ones(4))


@program
def forward_pre_hook() -> None:
    model = Model()
    model.register_forward_pre_hook(fail)
    model(torch.ones(4))


@program
def hook_that_is_always_called() -> None:
    model = Failing()
    model.register_forward_hook(fail, always_call=True)
    with pytest.warns(UserWarning):
        model(torch.ones(4))


@program
def full_backward_hook() -> None:
    model = Model()
    model.body.register_full_backward_hook(fail)
    model(torch.ones(4)).sum().backward()


@program
def full_backward_pre_hook() -> None:
    model = Model()
    model.register_full_backward_pre_hook(fail)
    model(torch.ones(4)).sum().backward()


@program
def hook_of_a_tensor() -> None:
    x = torch.ones(1, requires_grad=True)
    x.register_hook(fail)
    torch.autograd.grad(x.sum(), x)


@program
def hook_after_accumulation() -> None:
    x = torch.ones(1, requires_grad=True)
    x.register_post_accumulate_grad_hook(fail)
    torch.autograd.backward(x.sum())


@program
def own_function() -> None:
    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            return fail()

    Identity.apply(torch.ones(1, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]


@program
def backward_twice() -> None:
    loss = torch.ones(2, requires_grad=True).square().sum()
    loss.backward()
    loss.backward()


@program
def recomputed_forward() -> None:
    calls = []

    def forward(x: Tensor) -> Tensor:
        calls.append(x)
        return x.square() if len(calls) == 1 else fail()

    x = torch.ones(1, requires_grad=True)
    checkpoint(forward, x, use_reentrant=False).sum().backward()


class Broken(Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return fail() if index > 1 else torch.ones(1)


class BrokenStream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield torch.ones(1)
        fail()


@program
def sampler() -> None:
    class Order(list[int]):
        __iter__ = fail

    next(iter(DataLoader(Broken(), sampler=Order())))


class Updating(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        fail()


@program
def hook_of_an_optimizer() -> None:
    optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
    optimizer.register_step_pre_hook(fail)
    optimizer.step()


@program
def zero_grad() -> None:
    optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
    optimizer.param_groups.append({"params": [3]})
    optimizer.zero_grad()


@program
def zero_grad_of_a_module() -> None:
    class Hiding(Model):
        parameters = fail

    Hiding().zero_grad()


@program
def clip_of_what_is_not_finite() -> None:
    x = nn.Parameter(torch.ones(1))
    x.grad = torch.tensor([torch.inf])
    nn.utils.clip_grad_norm_(x, 1.0, error_if_nonfinite=True)


@program
def clip_by_no_number() -> None:
    x = nn.Parameter(torch.ones(1))
    x.grad = torch.ones(1)
    nn.utils.clip_grad_value_(x, "one")  # type: ignore[arg-type]


@program
def scheduler() -> None:
    optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
    rates = iter([1.0])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: next(rates, None) or fail())
    optimizer.step()
    scheduler.step()


@program
def scheduler_without_metric() -> None:
    optimizer = torch.optim.SGD(Model().parameters(), lr=0.1)
    torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step()  # type: ignore[call-arg]


@program
def checkpoint_that_fails_on_its_own() -> None:
    class Hiding(Model):
        __reduce_ex__ = fail

    torch.save(Hiding(), io.BytesIO())


@program
def scaler_that_steps_twice() -> None:
    training = Training()
    training.scaler.scale(training.model(torch.ones(4)).sum()).backward()
    training.scaler.step(training.optimizer)
    training.scaler.step(training.optimizer)


@program
def scaler_without_gradients() -> None:
    training = Training()
    training.scaler.scale(torch.ones(1))
    training.scaler.step(training.optimizer)


@program
def mask_of_another_shape() -> None:
    torch.ones(2)[torch.ones(3).bool()] = 1.0


@program
def deletion() -> None:
    del torch.ones(2)[0]  # type: ignore[attr-defined]


PROGRAMS.update(
    {
        "in_forward": lambda: Failing()(torch.ones(1)),
        "in_a_submodule": lambda: nn.Sequential(nn.Identity(), nn.Sequential(Failing()))(
            torch.ones(1)
        ),
        "ctrl_c_in_forward": lambda: Failing(KeyboardInterrupt())(torch.ones(1)),
        "end_of_an_iterator_in_forward": lambda: Failing(StopIteration("of the program"))(
            torch.ones(1)
        ),
        "exit_in_forward": lambda: Failing(SystemExit(3))(torch.ones(1)),
        "wrong_arguments_of_a_module": lambda: Model()(torch.ones(4), wrong=1),
        "no_arguments_of_a_module_function": lambda: nn.Module.__call__(),
        "no_forward": lambda: nn.Module()(torch.ones(1)),
        "backward_of_many": lambda: torch.ones(2, requires_grad=True).mul(2).backward(),
        "backward_of_no_gradient": lambda: torch.ones(1).backward(),
        "backward_with_wrong_arguments": lambda: torch.ones(1, requires_grad=True).backward(
            inputs=[]
        ),
        "dataset": lambda: list(DataLoader(Broken())),
        "iterable_dataset": lambda: list(DataLoader(BrokenStream())),
        "dataset_in_a_worker": lambda: list(DataLoader(Broken(), num_workers=1)),
        "collate": lambda: next(iter(DataLoader(Broken(), collate_fn=fail))),
        "loader_that_is_none": lambda: DataLoader.__iter__(object()),  # type: ignore[arg-type]
        "step": lambda: Updating(Model().parameters(), lr=0.1).step(),
        "closure": lambda: torch.optim.SGD(Model().parameters(), lr=0.1).step(fail),
        "closure_with_a_failing_model": lambda: torch.optim.LBFGS(Model().parameters()).step(
            lambda: Failing()(torch.ones(1))
        ),
        "no_parameters": lambda: torch.optim.SGD([], lr=0.1),
        "optimizer_with_wrong_arguments": lambda: torch.optim.Optimizer(torch.ones(1), {}),
        "zero_grad_with_wrong_arguments": lambda: Model().zero_grad(1, 2),  # type: ignore[call-arg, arg-type]
        "clip_of_no_parameters": lambda: nn.utils.clip_grad_norm_([object()], 1.0),  # type: ignore[list-item]
        "checkpoint_of_what_cannot_be_pickled": lambda: torch.save(
            {"model": Model(), "loss": lambda: 1}, io.BytesIO()
        ),
        "checkpoint_nowhere": lambda: torch.save(Model(), "/nowhere/at/all.pt"),
        "loss_of_wrong_shapes": lambda: functional.cross_entropy(
            torch.ones(2, 3), torch.ones(4).long()
        ),
        "loss_module_of_wrong_shapes": lambda: nn.NLLLoss()(torch.ones(2, 3), torch.ones(4).long()),
        "reading_many": lambda: torch.ones(2).item(),
        "truth_of_many": lambda: bool(torch.ones(2)),
        "index_of_many": lambda: [1, 2][torch.ones(2).long()],
        "array_of_what_requires_gradients": lambda: torch.ones(2, requires_grad=True).numpy(),
        "values_of_meta": lambda: torch.ones(2, device="meta").cpu(),
        "no_device": lambda: torch.ones(2).to("none"),
        "no_device_at_all": lambda: torch.ones(2).to(object()),  # type: ignore[call-overload]
        "copy_of_another_shape": lambda: torch.ones(2).copy_(torch.ones(3)),
        "where_without_arguments": lambda: torch.where(),  # type: ignore[call-overload]
        "unhashable_keywords": lambda: torch.nonzero(torch.ones(2), as_tuple=1, wrong=2),  # type: ignore[call-overload]
        "outside_of_a_tensor": lambda: torch.ones(2)[torch.tensor([2])],
    }
)


def told(error: BaseException | None) -> Any:
    """All that a program can ask of an error."""
    if error is None:
        return None
    walked = [
        (frame.f_code.co_filename, frame.f_code.co_name, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    text = "".join(traceback.format_exception(error))
    also = (told(error.__cause__), told(error.__context__), error.__suppress_context__)
    return text, type(error), str(error), walked, also, getattr(error, "__notes__", None)


SLOW = {"dataset_in_a_worker"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in PROGRAMS],
)
def test_errors_are_those_without_hooks(name: str) -> None:
    def observe() -> Any:
        try:
            PROGRAMS[name]()
        except BaseException as error:
            return told(error)
        raise AssertionError("the program raised nothing")

    seen_alike(observe, *WAYS.values())
