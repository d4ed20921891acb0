# SPDX-License-Identifier: Apache-2.0
"""What rules say of programs that train on the CPU: workers of loaders, optimizers and threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.loader_replay import LoaderModel, Processors
from pyinstrument_gpu.analysis.rules import findings
from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
from pyinstrument_gpu.aspects.stacks.data import StackNode, Stacks
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run
from tests.helpers.made_script import WatchedScript
from tests.helpers.timed_runs import made_run, with_waits

MS = 1_000_000
SECOND = 1_000_000_000


def found(run: Run, advice: str) -> list[Finding]:
    return [one for one in findings(run) if one.about.startswith(advice)]


def with_model(wait_ns: int, making_ns: int, gpus: Sequence[str] = (), busy: float = 0.0) -> Run:
    """A run whose loop waits so long for a batch, which a worker makes in so much time."""
    count = 40
    facts: dict[str, Any] = {KEY: {"loader_workers": 1}, "gpus": list(gpus)}
    run = with_waits(made_run([10 * MS] * count, **facts), busy)
    analysis.of(run).__dict__["loader_model"] = LoaderModel(
        making_ns=np.full(count, making_ns),
        using_ns=np.full(count, 10 * MS - wait_ns),
        handing_ns=np.full(count, wait_ns),
        workers=1,
        prefetch=2,
        processors=Processors(2),
        wait_ns=float(wait_ns),
    )
    return run


def test_batches_that_are_made_sooner_than_handed_over_are_made_by_the_loop() -> None:
    (one,) = found(with_model(4 * MS, MS), "load batches in the loop itself")
    assert (one.low_ns, one.high_ns, one.of_ns) == (3 * MS, 3 * MS, 10 * MS)
    assert one.edit == "DataLoader(num_workers=0)"
    assert not found(with_model(4 * MS, 5 * MS), "load batches in the loop itself")
    busy = with_model(4 * MS, MS, busy=0.5)
    assert [one.low_ns for one in found(busy, "load batches in the loop")] == [1.5 * MS]


def test_beside_a_gpu_the_loop_is_not_told_to_make_its_batches() -> None:
    run = with_model(4 * MS, MS, gpus=["a GPU"])
    assert not found(run, "load batches in the loop itself")


def epochs(count: int, workers: int, is_kept: bool | None = False) -> Run:
    """So many epochs of five steps, before each of which workers start, and end behind it."""
    program = WatchedScript()
    for _ in range(count):
        program.leaf("data start", 100 * MS)
        for _ in range(5):
            with program.step():
                program.leaf("data", 2 * MS)
                program.leaf("forward", 8 * MS)
        program.leaf("data end", 20 * MS)
    facts = {"loader_workers": workers, "loader_persistent": is_kept}
    return program.run(environment={"gpus": [], KEY: facts})


def test_workers_are_kept_where_they_are_started_again_and_again() -> None:
    (one,) = found(epochs(4, workers=2), "keep the loader's workers")
    assert one.low_ns is not None and one.high_ns is not None
    # Three starts and three ends; half of it is certain. The first waits may be theirs, too.
    assert one.low_ns * 20 == pytest.approx(3 * 120 * MS / 2)
    assert 3 * 120 * MS <= one.high_ns * 20 <= 3 * 122 * MS + 1
    assert one.edit == "DataLoader(persistent_workers=True)"
    assert not found(epochs(1, workers=2), "keep the loader's workers")
    assert not found(epochs(4, workers=0), "keep the loader's workers")
    for is_kept in (True, None):
        assert not found(epochs(4, 2, is_kept), "keep the loader's workers")


def test_an_optimizer_that_goes_over_its_parameters_one_by_one_is_fused() -> None:
    functions = (("/v/site-packages/torch/optim/adam.py", "_single_tensor_adam"), ("a.py", "main"))

    def sampled(seen: int, other: int) -> Run:
        run = made_run([10 * MS] * 20, {"optimizer": 0.5}, gpus=[])
        samples = [
            StackNode(0, place, count, count * MS) for place, count in ((0, seen), (1, other))
        ]
        run.stacks = Stacks(
            is_sampled=True,
            functions=functions,
            places=((0, 1), (1, 2)),
            nodes=(StackNode(-1, 0, 0, 0), *samples),
            paths=("optimizer",),
        )
        return run

    (one,) = found(sampled(30, 10), "use a fused optimizer")
    assert one.low_ns == 0
    assert one.high_ns == pytest.approx(0.75 * 5 * MS)
    assert not found(sampled(0, 40), "use a fused optimizer")
    assert not found(sampled(10, 5), "use a fused optimizer")  # too few to tell
    with_gpu = sampled(30, 10)
    with_gpu.environment["gpus"] = ["a GPU"]
    assert not found(with_gpu, "use a fused optimizer")


def test_threads_beyond_the_processors_may_be_what_steps_wait_for() -> None:
    known = CpuContention(10 * SECOND, 2, 20 * SECOND, 20 * SECOND)
    many = with_waits(made_run([10 * MS] * 20, torch_threads=16), 0.4, known)
    (one,) = found(many, "run no more threads")
    assert (one.low_ns, one.high_ns) == (0, 4 * MS)
    assert one.evidence.startswith("torch uses 16 threads on 2 processors")
    few = with_waits(made_run([10 * MS] * 20, torch_threads=2), 0.4, known)
    assert not found(few, "run no more threads")
