# SPDX-License-Identifier: Apache-2.0
"""Modules that are timed in some of the steps: what is made of these holds for all."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.aspects.modules.per_step import PassPerStep, modules_per_step
from pyinstrument_gpu.core.run import Run
from tests.helpers.clock import fake_clock
from tests.helpers.timed_modules import Work

FIRST = 3
"""Steps that are timed in any case."""


def train(steps: Iterable[int], every: int, slow_ns: int = 0, slow_every: int = 4) -> Run:
    """Steps of 30 us, and of more where one begins in which the module is slow."""
    with fake_clock() as advance:
        work = Work(advance, 10_000, 20_000)
        model = nn.Sequential(work)
        x = torch.ones(4)
        with pig.watch_modules(model, "all", every=every), pig.record() as recording:
            for i in pig.gpu_steps(steps):
                work.forward_ns = 10_000 + (slow_ns if i % slow_every == slow_every - 1 else 0)
                model(x).sum().backward()
        return recording.run


def weights_of(run: Run) -> list[int]:
    assert run.module_step_weights is not None
    weights: list[int] = run.module_step_weights.tolist()
    return weights


def per_step(run: Run, kind: ModulePass, name: str = "0") -> PassPerStep:
    found = modules_per_step(run)[name].passes[kind]
    assert found is not None
    return found


def test_one_step_of_every_n_is_timed_and_stands_for_them() -> None:
    run = train(range(FIRST + 40), every=4)
    weights = weights_of(run)
    assert weights[:FIRST] == [1] * FIRST
    blocks = [weights[i : i + 4] for i in range(FIRST, len(weights), 4)]
    assert all(sorted(block) == [0, 0, 0, 4] for block in blocks)
    # Which one it is, is drawn.
    assert {block.index(4) for block in blocks} == {0, 1, 2, 3}

    timed = [step for step, weight in enumerate(weights) if weight]
    assert run.modules["0"].calls == len(timed)
    assert sorted(set(run.module_spans["step"].tolist())) == timed
    assert per_step(run, ModulePass.FORWARD) == PassPerStep(1.0, 10_000.0, None)
    assert per_step(run, ModulePass.BACKWARD) == PassPerStep(1.0, 20_000.0, None)
    assert modules_per_step(run)["0"].share == 1.0
    assert "Modules were timed in 13 of 43 steps, which stand for all" in run.report(
        verbose=True, color=False
    )


def test_a_first_step_that_is_unlike_the_others_counts_once() -> None:
    run = train(range(FIRST + 40), every=4, slow_ns=430_000, slow_every=1_000_000)
    assert per_step(run, ModulePass.FORWARD).host_ns == 10_000
    slow_first = train([999_999, *range(FIRST + 39)], 4, slow_ns=430_000, slow_every=1_000_000)
    assert per_step(slow_first, ModulePass.FORWARD).host_ns == pytest.approx(20_000)


def test_what_happens_every_n_steps_is_neither_missed_nor_all_that_is_seen() -> None:
    run = train(range(FIRST + 400), every=4, slow_ns=40_000)
    assert per_step(run, ModulePass.FORWARD).host_ns == pytest.approx(20_000, rel=0.1)


def test_each_step_with_every_1() -> None:
    run = train(range(20), every=1)
    assert run.module_step_weights is None
    assert run.modules["0"].calls == 20
    assert "Modules were timed in" not in run.report(verbose=True, color=False)


def test_steps_that_were_none_take_no_turn() -> None:
    """Each pass over the data ends with a step for which there is no batch."""
    with fake_clock() as advance:
        model = nn.Sequential(Work(advance, 10_000, 20_000))
        with pig.watch_modules(model, "all", every=3), pig.record() as recording:
            for _ in range(6):
                for x in pig.gpu_steps([torch.ones(4)] * 2):
                    model(x).sum().backward()
    weights = weights_of(recording.run)
    assert [sum(weights[i : i + 3]) for i in range(FIRST, 12, 3)] == [3, 3, 3]


def test_checkpoints_accumulation_and_validation() -> None:
    with fake_clock() as advance:
        layers = nn.ModuleList(Work(advance, 10_000, 20_000) for _ in range(2))
        with pig.watch_modules(layers, "all", every=5), pig.record() as recording:
            for _ in range(FIRST + 20):
                with pig.gpu_step():
                    for _ in range(2):
                        x = torch.ones(4, requires_grad=True)
                        for layer in layers:
                            x = checkpoint(layer, x, use_reentrant=True)
                        x.sum().backward()
                with torch.no_grad():
                    layers[0](torch.ones(4))
    run = recording.run
    assert run.modules["0"].calls == (FIRST + 4) * 2 + FIRST + 20  # validation is in no step
    assert per_step(run, ModulePass.FORWARD, "*") == PassPerStep(4.0, 40_000.0, None)
    assert per_step(run, ModulePass.BACKWARD, "*") == PassPerStep(4.0, 80_000.0, None)
    assert per_step(run, ModulePass.RECOMPUTE, "*") == PassPerStep(4.0, 40_000.0, None)
    assert modules_per_step(run)["*"].share == 1.0


def test_the_smallest_number_counts_for_all_watches() -> None:
    with fake_clock() as advance:
        models = [nn.Sequential(Work(advance, 10_000, 20_000)) for _ in range(2)]
        watches = [
            pig.watch_modules(model, "all", every=every)
            for model, every in zip(models, (7, 2), strict=True)
        ]

        def run() -> Run:
            with pig.record() as recording:
                for _ in range(FIRST + 14):
                    with pig.gpu_step():
                        models[0](torch.ones(4))
            return recording.run

        assert set(weights_of(run())[FIRST:]) == {0, 2}
        watches[1].remove()
        assert set(weights_of(run())[FIRST:]) == {0, 7}
        watches[0].remove()


def test_wrong_numbers() -> None:
    model = nn.Sequential(nn.ReLU())
    with pytest.raises(TypeError, match=r'every must be an int or "auto", got float: 2\.0'):
        pig.watch_modules(model, every=2.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be from 1 to 1,000,000, got 0"):
        pig.watch_modules(model, every=0)
