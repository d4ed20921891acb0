# SPDX-License-Identifier: Apache-2.0
"""Functions that torch.compile has made, in a loop with automatic phases and steps."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.report.no_steps import no_steps

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Program:
    """A model and its optimizer, made as a program makes them that is recorded."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def loss_of(self, x: Tensor, y: Tensor) -> Any:
        return functional.cross_entropy(self.model(x), y)

    def train_step(self, x: Tensor, y: Tensor, is_update: bool = True) -> Any:
        loss = self.loss_of(x, y)
        loss.backward()
        if is_update:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.detach()


def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(8, 4), torch.randint(0, 2, (8,))


def recorded(loop: Callable[[Program], None]) -> Run:
    with pig.record() as recording, pig.auto_phases():
        loop(Program())
    return recording.run


def counts(run: Run, scope: Scope = Scope.STEP) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases_in(scope).items()}


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param("aot_eager", marks=pytest.mark.thorough),
        pytest.param("inductor", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_training_step_is_a_phase_and_a_step(backend: str) -> None:
    def loop(program: Program) -> None:
        train_step = torch.compile(program.train_step, backend=backend)
        for _ in range(4):
            train_step(*batch())

    run = recorded(loop)
    assert run.step_totals.count == 4
    phases = {path: count for path, count in counts(run).items() if " graph" not in path}
    assert phases == {"compiled train_step": 4}
    assert {path.partition("/")[0] for path in run.phases} == {"compiled train_step"}


def test_only_calls_that_update_end_a_step() -> None:
    def loop(program: Program) -> None:
        train_step = torch.compile(program.train_step, backend="eager")
        for call in range(6):
            train_step(*batch(), is_update=call % 2 == 1)

    run = recorded(loop)
    assert run.step_totals.count == 3
    assert counts(run) == {"compiled train_step": 6}


@pytest.mark.parametrize("kind", ["foreach", pytest.param("fused", marks=pytest.mark.thorough)])
def test_compiled_parts_of_a_step(kind: str) -> None:
    def loop(program: Program) -> None:
        parameters = program.model.parameters()
        options: dict[str, Any] = {kind: True}
        program.optimizer = torch.optim.AdamW(parameters, lr=0.1, **options)
        loss_of = torch.compile(program.loss_of, backend="eager", fullgraph=True)
        update = torch.compile(program.optimizer.step, backend="eager")
        for _ in range(3):
            loss_of(*batch()).backward()
            update()
            program.optimizer.zero_grad()

    run = recorded(loop)
    assert run.step_totals.count == 3
    assert counts(run) == {
        "compiled loss_of": 3,
        "backward": 3,
        "compiled step": 3,
        "zero_grad": 3,
    }


def test_a_compiled_function_without_gradients_is_no_evaluation() -> None:
    def loop(program: Program) -> None:
        @torch.compile(backend="eager")
        def decode(x: Tensor) -> Any:
            return program.model(x).argmax(1)

        with torch.no_grad():
            for _ in range(3):
                decode(batch()[0])

    run = recorded(loop)
    assert run.step_totals.count == 0
    assert counts(run, Scope.OUTSIDE) == {"compiled decode": 3}


def test_an_update_that_cannot_be_seen_is_said() -> None:
    def loop(program: Program) -> None:
        @torch.compile(backend="eager")
        def updated(weights: Tensor, x: Tensor) -> Any:
            gradient = torch.func.grad(lambda w: (x @ w).square().mean())(weights)
            return weights - 0.1 * gradient

        weights = torch.ones(4)
        for _ in range(3):
            weights = updated(weights, batch()[0])

    run = recorded(loop)
    assert run.step_totals.count == 0
    said = no_steps(run)
    assert "only 3 compiled updated; " in said
    assert "pyinstrument_gpu.gpu_steps" in said


def test_calls_inside_a_compiled_function_are_part_of_it() -> None:
    def loop(program: Program) -> None:
        inner = torch.compile(program.loss_of, backend="eager")

        def outer(x: Tensor, y: Tensor) -> Any:
            torch._dynamo.graph_break()
            loss = inner(x, y)
            torch._dynamo.graph_break()
            return loss + program.model(x).sum()

        compiled = torch.compile(outer, backend="eager")
        for _ in range(2):
            compiled(*batch()).backward()
            program.optimizer.step()

    run = recorded(loop)
    assert counts(run) == {"compiled outer": 2, "backward": 2, "optimizer": 2}


def test_a_compiled_function_inside_an_optimizer() -> None:
    class Orthogonal(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                parameter -= 0.1 * self.direction(parameter.grad)

        @staticmethod
        @torch.compile(backend="eager", dynamic=True)
        def direction(gradient: Tensor) -> Any:
            return gradient / gradient.norm()

    def loop(program: Program) -> None:
        optimizer = Orthogonal(program.model.parameters(), lr=0.1)
        program.optimizer = optimizer
        for _ in range(2):
            program.train_step(*batch())

    run = recorded(loop)
    assert run.step_totals.count == 2
    assert counts(run) == {
        "forward": 2,
        "loss": 2,
        "backward": 2,
        "optimizer": 2,
        "optimizer/compiled direction": 8,
        "zero_grad": 2,
    }


def test_a_compiled_function_that_raises() -> None:
    def loop(program: Program) -> None:
        @torch.compile(backend="eager")
        def fails(x: Tensor) -> Any:
            torch._dynamo.graph_break()
            raise ValueError("x")

        for _ in range(2):
            with pytest.raises(ValueError, match="x"):
                fails(torch.ones(2))
        program.train_step(*batch())

    run = recorded(loop)
    assert run.open_phases == ()
    assert run.phases["compiled fails"].count == 2
    assert run.phases["forward"].count == 1


def test_a_compiled_module_is_a_forward_pass() -> None:
    def loop(program: Program) -> None:
        model: Any = torch.compile(program.model, backend="eager")
        with torch.no_grad():
            model(batch()[0])
        model.eval()
        with torch.no_grad():
            model(batch()[0])
        model.train()
        for _ in range(2):
            model(batch()[0]).sum().backward()
            program.optimizer.step()

    run = recorded(loop)
    assert counts(run) == {"forward": 2, "backward": 2, "optimizer": 2}
    assert counts(run, Scope.OUTSIDE) == {"no_grad": 1, "eval": 1}
