# SPDX-License-Identifier: Apache-2.0
"""What code of a program that torch calls sees of its callers: frames, warnings, recursion."""

import io
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, Dataset

from tests.helpers.hooked import WAYS, Hooked, seen_alike
from tests.helpers.training import Model


class Everywhere:
    """Calls `visit` in each place of a training where torch calls code of a program."""

    def __init__(self, visit: Callable[[], object]) -> None:
        self.visit = visit

    def __call__(self, *_: Any) -> None:
        self.visit()

    def train(self) -> None:
        visit = self.visit

        class Data(Dataset[Any]):
            def __len__(self) -> int:
                return 2

            def __getitem__(self, index: int) -> Any:
                visit()
                return torch.ones(4)

        class Visited(Model):
            def forward(self, x: Tensor) -> Tensor:
                visit()
                return super().forward(x)

            def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
                if visited_in_zero_grad:
                    visit()
                return super().parameters(recurse)

        class Optimizer(torch.optim.SGD):
            def zero_grad(self, set_to_none: bool = True) -> None:
                visit()
                super().zero_grad(set_to_none)

        visited_in_zero_grad = False
        model: Any = Visited()
        model.body.register_forward_pre_hook(self)
        model.body[0].register_forward_hook(self)
        model.body.register_full_backward_hook(self)
        model.body[2].register_full_backward_pre_hook(self)
        model.body[0].weight.register_post_accumulate_grad_hook(self)
        optimizer = Optimizer(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(self)

        def rate(epoch: int) -> float:
            visit()
            return 1.0

        def collate(items: list[Any]) -> Tensor:
            visit()
            return torch.stack(items)

        scheduler = lr_scheduler.LambdaLR(optimizer, rate)
        for x in DataLoader(Data(), batch_size=2, collate_fn=collate):
            y = model(x)
            y.register_hook(lambda gradient: visit() and None)
            y.sum().backward()
            optimizer.step()
            scheduler.step()
            nn.utils.clip_grad_norm_(parameters_of(model, visit), 1.0)
            nn.utils.clip_grad_value_(parameters_of(model, visit), 1.0)
            optimizer.zero_grad()
            visited_in_zero_grad = True
            model.zero_grad()
            visited_in_zero_grad = False
            torch.autograd.grad(model(x).sum(), model.body[0].weight)
        torch.save([Pickled(visit)], io.BytesIO())


def parameters_of(model: nn.Module, visit: Callable[[], object]) -> Iterator[nn.Parameter]:
    visit()
    yield from model.parameters()


class Pickled:
    def __init__(self, visit: Callable[[], object]) -> None:
        self.visit = visit

    def __reduce__(self) -> Any:
        self.visit()
        return dict, ()


@pytest.mark.filterwarnings("ignore")
def test_callers_are_those_without_hooks() -> None:
    def observe() -> list[Any]:
        found: list[Any] = []

        def visit() -> None:
            frame, callers = sys._getframe(1), []
            while frame is not None and frame.f_code is not observe.__code__:
                callers.append((frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno))
                frame = frame.f_back  # type: ignore[assignment]
            found.append(callers)

        Everywhere(visit).train()
        return found

    assert len(seen_alike(observe, *WAYS.values())) > 15


def test_warnings_of_a_program_name_the_same_lines() -> None:
    levels = [1, 2, 3]

    def observe() -> list[Any]:
        def visit() -> None:
            for level in levels:
                warnings.warn(f"at {level}", FutureWarning, stacklevel=level + 1)

        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            Everywhere(visit).train()
        return [(one.category, str(one.message), one.filename, one.lineno) for one in found]

    assert len(seen_alike(observe, *WAYS.values())) > 60


def test_warnings_of_torch_name_the_same_lines() -> None:
    def program() -> None:
        parameter = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([parameter], lr=0.1)
        scheduler = lr_scheduler.StepLR(optimizer, 1)
        scheduler.step()
        scheduler.step(3)
        functional.mse_loss(torch.zeros(2, 1), torch.zeros(2))
        nn.L1Loss()(torch.zeros(2, 1), torch.zeros(2))
        nn.Softmax(dim=None)(torch.ones(2))
        nn.utils.clip_grad_norm([parameter], 1.0)
        torch.tensor(torch.ones(1))
        float(parameter.sum())
        parameter.sum().backward(create_graph=True)
        torch.ones(2)[torch.ones(2).byte()]
        x = torch.ones(2)
        assert (parameter * 2).grad is None
        model = nn.Linear(2, 2)
        model.register_backward_hook(lambda *_: None)
        model(x)
        full = Model()
        full.register_full_backward_hook(lambda *_: None)
        full(torch.ones(4)).sum().backward()
        torch.cuda.amp.GradScaler()
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer).step(torch.tensor(1.0))
        torch.nonzero(x)
        torch.jit.script(nn.Linear(1, 1))

    def observe() -> list[Any]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            program()
        return [(one.category, str(one.message), one.filename, one.lineno) for one in found]

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # where a process would be warned once
    try:
        assert len(seen_alike(observe, *WAYS.values())) > 8
    finally:
        torch.set_warn_always(always)


def test_a_warning_that_comes_once_in_a_line_comes_once(hooked: Hooked) -> None:
    def warn() -> None:
        for _ in range(3):
            functional.mse_loss(torch.zeros(2, 1), torch.zeros(2))

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        warn()
        with hooked():
            warn()
        warn()
    assert len(found) == 1


def test_modules_nest_as_deep_as_before_an_error() -> None:
    class Nesting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.depth = 0

        def forward(self, x: Any) -> Any:
            self.depth += 1
            return self(x)

    class Endless(Dataset[Any]):
        depth = 0

        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Any:
            Endless.depth += 1
            return next(iter(DataLoader(self)))

    class Closing(torch.optim.SGD):
        depth = 0

        def zero_grad(self, set_to_none: bool = True) -> None:
            Closing.depth += 1
            self.step(self.zero_grad)

    def in_a_thread(act: Callable[[], object]) -> None:
        def run() -> None:
            with pytest.raises(RecursionError):
                act()

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def observe() -> list[int]:
        model = Nesting()
        Endless.depth = Closing.depth = 0
        in_a_thread(lambda: model(1))
        in_a_thread(lambda: next(iter(DataLoader(Endless()))))
        in_a_thread(Closing([nn.Parameter(torch.ones(1))], lr=0.1).zero_grad)
        return [model.depth, Endless.depth, Closing.depth]

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(400)
    try:
        assert min(seen_alike(observe, *WAYS.values())) > 10
    finally:
        sys.setrecursionlimit(before)
