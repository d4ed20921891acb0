# SPDX-License-Identifier: Apache-2.0
"""Models with known times of their modules: what is recorded is exact, and adds up."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from tests.helpers.clock import fake_clock
from tests.helpers.timed_modules import Advance, Work

OWN_FORWARD_NS, OWN_BACKWARD_NS = 1_000, 3_000
"""What the loss takes, which is in no module."""


def trained(
    model_of: Callable[[Advance], nn.Module], select: str = "all", steps: int = 2
) -> tuple[Run, nn.Module]:
    with fake_clock() as advance:
        model = model_of(advance)
        loss_of = Work(advance, OWN_FORWARD_NS, OWN_BACKWARD_NS)
        with pig.watch_modules(model, select, every=1), pig.record() as recording:
            for _ in range(steps):
                with pig.gpu_step():
                    with pig.gpu_phase("forward"):
                        loss = loss_of(model(torch.ones(4))).sum()
                    with pig.gpu_phase("backward"):
                        loss.backward()
        return recording.run, model


def times(run: Run, attribute: str) -> dict[str, int]:
    """The total of each module of which there is one, in a step."""
    found = {}
    for group in run.modules:
        for name in run.modules.of_group(group):
            statistic = getattr(run.modules[name], attribute)
            if statistic is not None:
                found[name] = statistic.total_ns // len(run.steps.closed)
    return found


def check_that_it_adds_up(run: Run) -> None:
    """The marks divide the backward pass: outermost modules and the loss make up all of it."""
    outermost = run.module_spans[run.module_spans["depth"] == 0]
    in_backward = outermost[outermost["kind"] == 1]
    total_ns = int(durations_ns_of(in_backward, "host_").sum())
    backward = run.phases["backward"].host
    assert backward is not None
    assert total_ns + OWN_BACKWARD_NS * len(run.steps.closed) == backward.total_ns


def check(run: Run, forward: Mapping[str, int], backward: Mapping[str, int]) -> None:
    assert times(run, "forward") == forward
    assert times(run, "backward") == backward
    check_that_it_adds_up(run)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, advance: Advance) -> None:
        super().__init__()
        self.attn = Work(advance, 10_000, 20_000)
        self.mlp = Work(advance, 30_000, 60_000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(x)
        y: torch.Tensor = x + self.mlp(x)
        return y


class Stack(nn.Module):
    def __init__(self, advance: Advance, way: Callable[[nn.Module, Any], Any] | None = None):
        super().__init__()
        self.embed = Work(advance, 5_000, 7_000)
        self.layers = nn.ModuleList(Block(advance) for _ in range(3))
        self.head = Work(advance, 2_000, 4_000)
        self._way = way or (lambda layer, x: layer(x))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = self._way(layer, x)
        return self.head(x)


STACK_FORWARD = {"embed": 5_000, "head": 2_000} | {
    name: ns
    for i in range(3)
    for name, ns in (
        (f"layers.{i}", 40_000),
        (f"layers.{i}.attn", 10_000),
        (f"layers.{i}.mlp", 30_000),
    )
}
STACK_BACKWARD = {"embed": 7_000, "head": 4_000} | {
    name: 2 * ns for name, ns in STACK_FORWARD.items() if name.startswith("layers")
}


def test_residual_blocks() -> None:
    run, _ = trained(Stack)
    check(run, STACK_FORWARD, STACK_BACKWARD)
    assert list(run.modules) == ["layers.*", "layers.*.attn", "layers.*.mlp", "embed", "head"]
    assert run.modules["layers.*"].calls == 6
    assert run.notes == ()


def test_spans_hang_under_the_phase_and_the_step() -> None:
    run, _ = trained(Stack)
    phases = [run.paths[path] for path in run.module_spans["path"]]
    kinds = run.module_spans["kind"].tolist()
    assert set(zip(phases, kinds, strict=True)) == {("forward", 0), ("backward", 1)}
    assert set(run.module_spans["step"].tolist()) == {0, 1}
    # Phases know nothing of modules.
    assert run.paths == ("forward", "backward")
    assert run.names == ("forward", "backward")
    assert len(run.spans) == run.phases_recorded == 4


def test_outputs_in_a_dict() -> None:
    class Detector(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.features = Features(advance)
            self.boxes = Work(advance, 1_000, 2_000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = self.features(image=x)
            y: torch.Tensor = self.boxes(found["fine"])
            return y

    class Features(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.body = Work(advance, 10_000, 20_000)

        def forward(self, image: torch.Tensor) -> OrderedDict[str, Any]:
            fine = self.body(image)
            return OrderedDict(fine=fine + 1, shapes=[(4,)])

    run, _ = trained(Detector)
    check(
        run,
        {"features": 10_000, "features.body": 10_000, "boxes": 1_000},
        {"features": 20_000, "features.body": 20_000, "boxes": 2_000},
    )


def test_parallel_branches() -> None:
    class Branches(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.stem = Work(advance, 1_000, 2_000)
            self.left = Work(advance, 10_000, 20_000)
            self.right = Work(advance, 30_000, 40_000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            y: torch.Tensor = self.left(x) + self.right(x)
            return y

    run, _ = trained(Branches)
    check(
        run,
        {"stem": 1_000, "left": 10_000, "right": 30_000},
        {"stem": 2_000, "left": 20_000, "right": 40_000},
    )


def test_in_place_operations() -> None:
    class InPlace(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.one = Work(advance, 10_000, 20_000)
            self.relu = nn.ReLU(inplace=True)
            self.two = Work(advance, 30_000, 40_000)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.two(self.relu(self.one(x)))
            return y

    run, _ = trained(InPlace)
    check(
        run,
        {"one": 10_000, "relu": 0, "two": 30_000},
        {"one": 20_000, "relu": 0, "two": 40_000},
    )


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool) -> None:
    def way(layer: nn.Module, x: Any) -> Any:
        return checkpoint(layer, x, use_reentrant=use_reentrant)

    run, _ = trained(lambda advance: Stack(advance, way))
    assert times(run, "forward") == STACK_FORWARD
    # A backward time includes the recomputation that it needs, which is also known apart.
    recomputed = {name: ns for name, ns in STACK_FORWARD.items() if name.startswith("layers")}
    assert times(run, "recompute") == recomputed
    check_that_it_adds_up(run)
    backward = times(run, "backward")
    assert backward["head"] == 4_000
    assert backward["embed"] == 7_000


def test_what_a_checkpoint_computes_before_its_module_is_not_part_of_the_one_behind_it() -> None:
    def model_of(advance: Advance) -> nn.Module:
        def way(layer: nn.Module, x: Any) -> Any:
            def computed(x: Any) -> Any:
                advance(500)
                return layer(x)

            return checkpoint(computed, x, use_reentrant=True)

        return Stack(advance, way)

    run, _ = trained(model_of)
    assert times(run, "backward")["head"] == 4_000


def test_a_shared_module_and_several_calls() -> None:
    class Twice(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.first = Work(advance, 10_000, 20_000)
            self.other = Work(advance, 1_000, 2_000)
            self.again = self.first

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.again(self.first(self.first(self.other(x))))
            return y

    run, _ = trained(Twice)
    check(run, {"first": 30_000, "other": 1_000}, {"first": 60_000, "other": 2_000})
    backward = run.modules["first"].backward
    assert backward is not None
    assert backward.count == run.modules["first"].calls == 6


def test_frozen_first_layers() -> None:
    def frozen(advance: Advance) -> Stack:
        model = Stack(advance)
        for part in (model.embed, model.layers[0]):
            part.requires_grad_(False)
        return model

    run, _ = trained(frozen)
    kept = {
        name: ns
        for name, ns in STACK_BACKWARD.items()
        if name != "embed" and not name.startswith("layers.0")
    }
    check(run, STACK_FORWARD, kept)


def test_a_second_backward_pass_over_the_same_graph() -> None:
    with fake_clock() as advance:
        model = Stack(advance)
        with pig.watch_modules(model, "all"), pig.record() as recording, pig.gpu_step():
            loss = model(torch.ones(4)).sum()
            loss.backward(retain_graph=True)
            loss.backward()
    assert times(recording.run, "forward") == STACK_FORWARD
    twice = {name: 2 * ns for name, ns in STACK_BACKWARD.items()}
    assert times(recording.run, "backward") == twice


def test_coarse() -> None:
    class Model(nn.Module):
        def __init__(self, advance: Advance) -> None:
            super().__init__()
            self.body = Stack(advance)
            self.out = Work(advance, 100, 200)

        def forward(self, x: torch.Tensor) -> Any:
            return self.out(self.body(x))

    run, _ = trained(Model, "coarse")
    assert list(run.modules) == [
        "body.layers.*",
        "body.layers.*.attn",
        "body.layers.*.mlp",
        "body.embed",
        "body.head",
        "out",
    ]
    check_that_it_adds_up(run)


def test_a_regular_expression() -> None:
    run, _ = trained(Stack, r"layers\.\d+")
    assert times(run, "forward") == {f"layers.{i}": 40_000 for i in range(3)}
    assert times(run, "backward") == {f"layers.{i}": 80_000 for i in range(3)}


def test_an_exception_in_a_module_loses_no_other() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("theirs")

    with fake_clock() as advance:
        model = nn.Sequential(Work(advance, 10_000, 0), Fails())
        with pig.watch_modules(model, "all"), pig.record() as recording:
            for _ in range(3):
                with pig.gpu_step(), pytest.raises(ValueError, match="theirs"):
                    model(torch.ones(4))
    assert times(recording.run, "forward") == {"0": 10_000, "1": 0}
    assert recording.run.modules["*"].calls == 6


def test_calls_that_are_nested_too_deeply_are_counted_as_lost() -> None:
    class Recursive(nn.Module):
        def forward(self, x: torch.Tensor, deeper: int) -> torch.Tensor:
            y: torch.Tensor = self(x, deeper - 1) if deeper else x
            return y

    model = nn.ModuleDict({"tree": Recursive()})
    with pig.watch_modules(model, "all"), pig.record() as recording:
        model["tree"](torch.ones(4), 149)
    run = recording.run
    assert run.modules["tree"].calls + run.dropped["depth"] == 150
    assert run.dropped["depth"] > 0
