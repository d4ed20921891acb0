# SPDX-License-Identifier: Apache-2.0
"""torch.compile under the hooks: the same graphs, no break more, nothing compiled again."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from tests.helpers.hooked import Hooked, heard, seen_alike, with_everything
from tests.helpers.training import Model, Training

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    torch._dynamo.reset()
    # Garbage of other tests that is found within a compiled call, and calls Python code as it goes,
    # would have that compiled and counted.
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    torch._dynamo.reset()


class Graphs:
    """A backend that keeps the graphs and runs them as they are."""

    def __init__(self) -> None:
        self.codes: list[str] = []

    def __call__(self, graph: Any, inputs: list[Any]) -> Any:
        self.codes.append(graph.print_readable(print_output=False))
        return graph.forward


def told() -> dict[str, dict[str, int]]:
    """What torch counted: graphs, breaks and their reasons.

    Not the frames, which are counted when torch has only looked at them: where the interpreter
    calls one of our functions by itself in the middle of a compiled one, as it may while
    something is recorded, there is one more.
    """
    kinds = ("stats", "graph_break", "unimplemented", "recompiles")
    return {kind: dict(counters[kind]) for kind in kinds if kind in counters}


@pytest.mark.thorough
def test_graphs_are_those_without_hooks() -> None:
    def observe() -> list[Any]:
        torch._dynamo.reset()
        counters.clear()
        graphs = Graphs()
        training = Training()

        def backward(x: Tensor, y: Tensor) -> Tensor:
            loss = functional.cross_entropy(training.model(x.to(torch.float32)), y)
            loss.backward()
            return loss

        def whole(x: Tensor, y: Tensor) -> Tensor:
            z = training.model(x)[:, torch.tensor([0, 1])]
            loss: Tensor = nn.MSELoss()(torch.where(z > 0, z, -z), z.to(torch.float32))
            return loss + x.to("cpu").sum()

        def reading(x: Tensor) -> float:
            return x.sum().item() + float(x[x > 0].sum()) + len(x.nonzero())

        found: list[Any] = []
        compiled = torch.compile(backward, backend=graphs)
        compiled_whole = torch.compile(whole, backend=graphs, fullgraph=True)
        compiled_reading = torch.compile(reading, backend=graphs)
        for x, y in training.loader:
            found += [compiled(x, y).item(), compiled_whole(x, y).item(), compiled_reading(x)]
        training.model.compile(backend=graphs)
        found.append(training.model(x).tolist())
        return [graphs.codes, told(), found, [p.tolist() for p in training.model.parameters()]]

    assert len(seen_alike(observe, with_everything)[0]) > 4


def test_nothing_is_compiled_again() -> None:
    graphs, training = Graphs(), Training()

    @torch.compile(backend=graphs)
    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(training.model(x), y) + x.sum().item()

    def update(x: Tensor, y: Tensor) -> None:
        training.optimizer.zero_grad()
        loss_of(x, y).backward()
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()

    x, y = torch.ones(4, 4), torch.zeros(4).long()
    for _ in range(4):
        update(x, y)
    before = len(graphs.codes), told()
    for hooked in (heard, with_everything):
        with hooked():
            for _ in range(3):
                update(x, y)
        update(x, y)
        assert (len(graphs.codes), told()) == before


def test_what_was_compiled_under_the_hooks_stays(hooked: Hooked) -> None:
    graphs, training = Graphs(), Training()
    compiled: Any = torch.compile(training.model, backend=graphs, fullgraph=True)
    x = torch.ones(4, 4)
    with hooked():
        compiled(x)
    compiled(x)
    assert len(graphs.codes) == 1


@pytest.mark.thorough
def test_training_with_aot_autograd() -> None:
    def observe() -> list[Any]:
        torch._dynamo.reset()
        model = Model()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for parameter in model.parameters():
                nn.init.normal_(parameter)
        optimizer = torch.optim.Adam(model.parameters())
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.ones(4, 4)).square().sum().backward()
            optimizer.step()
        return [parameter.tolist() for parameter in model.parameters()]

    seen_alike(observe, heard, with_everything)
