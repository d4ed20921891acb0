# SPDX-License-Identifier: Apache-2.0
"""What it costs to note what may make steps slow: all causes together, as a share of a step of
5 ms, beside the same steps without them; and a collection, a time, a sum, and a watched call."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import pyinstrument_gpu as pig
from benchmarks.effort import size
from benchmarks.gpu.figure import Figure
from benchmarks.interleave import interleaved, relative_difference
from pyinstrument_gpu.native import native

pytestmark = pytest.mark.usefixtures("one_core")

GENERATION = {"generation": 0, "collected": 0, "uncollectable": 0}


CAUSES = (
    "cpu_contention",
    "garbage_collection",
    "checkpoints_and_logging",
    "slow_step_causes",
    "gpu_use",
    "compilations",
)
"""The aspects whose watchers look for causes of slow steps alone, or nearly so."""
STEP_NS = 5_000_000
_STEPS, _ROUNDS = size(1000, 20), 20
_MOST_S = 30.0


def test_all_causes(benchmark: BenchmarkFixture) -> None:
    """CPU time of the whole process, with that of threads of its own. Between two readings of the
    clock a step sleeps, so that its caches are as cold as after real work."""
    arms = {
        "without": lambda: _steps_ns(CAUSES),
        "with": lambda: _steps_ns(()),
        "again without": lambda: _steps_ns(CAUSES),
    }
    found: list[Figure] = []

    def measure() -> None:
        times_ns = interleaved(arms, rounds=_ROUNDS, seconds=_MOST_S)
        # Of the time of a step, not of the little that it computes.
        base_ns = STEP_NS + 0 * times_ns["without"]
        for name in ("with", "again without"):
            more = relative_difference(base_ns, base_ns + times_ns[name] - times_ns["without"])
            found.append(
                Figure(
                    "all causes together" if name == "with" else "the floor: without, again",
                    *(100 * more.value, "% of a 5 ms step", 100 * more.low, 100 * more.high),
                    goal=0.1 if name == "with" else None,
                )
            )

    benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    _note(benchmark, "causes of slow steps", found)


def _steps_ns(without: tuple[str, ...]) -> float:
    """What a step costs the process, beyond its first ones. PyTorch is there, as it is in training:
    until then it is waited for."""
    pytest.importorskip("torch")
    recording = pig.record()
    for name in without:
        del recording.watchers[name]
    with recording:
        began_ns = 0
        for step in range(-_STEPS // 4, _STEPS):
            if step == 0:
                began_ns = time.process_time_ns()
            with pig.gpu_step():
                time.sleep(STEP_NS / 1e9)
        return (time.process_time_ns() - began_ns) / _STEPS


def test_single_notes(benchmark: BenchmarkFixture) -> None:
    torch = pytest.importorskip("torch")
    logger = logging.Logger("benchmark")
    logger.addHandler(logging.NullHandler())
    tensor = torch.zeros(16)
    calls: dict[str, tuple[Callable[[], object], Callable[[], object] | None]] = {
        "a garbage collection, both calls of Python": (_collect, _nothing),
        "a time that Python tells": (lambda: native.add_cause(1, 5, 6), _nothing),
        "a sum of a step": (lambda: native.add_cause_to_step(1, 5), _nothing),
        # Beside the same calls where nobody watches them.
        "logging.info": (lambda: logger.info("loss %f", 1.0), None),
        "torch.save of 64 bytes": (lambda: torch.save(tensor, io.BytesIO()), None),
    }
    found: list[Figure] = []

    def measure() -> None:
        for name, (call, other) in calls.items():
            arms: dict[str, Callable[[], float]] = {
                "without": partial(
                    _call_ns, other or call, () if other else ("checkpoints_and_logging",)
                ),
                "with": partial(_call_ns, call),
            }
            times_ns = interleaved(arms, rounds=_ROUNDS)
            usual_ns = float(np.median(times_ns["without"]))
            more = relative_difference(times_ns["without"], times_ns["with"])
            limits = (usual_ns * more.value, "ns", usual_ns * more.low, usual_ns * more.high)
            note = "" if other else f"the call takes {usual_ns:,.0f} ns"
            found.append(Figure(name, *limits, note=note))

    benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    _note(benchmark, "noting a cause of slow steps", found)


def _nothing() -> None:
    pass


def _collect() -> None:
    native.on_collection("start", GENERATION)
    native.on_collection("stop", GENERATION)


def _call_ns(call: Callable[[], object], without: tuple[str, ...] = (), calls: int = 500) -> float:
    recording = pig.record()
    for name in without:
        del recording.watchers[name]
    with recording, pig.gpu_step():
        for _ in range(calls // 10):
            call()
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        return (time.perf_counter_ns() - began_ns) / calls


def _note(benchmark: BenchmarkFixture, title: str, figures: list[Figure]) -> None:
    benchmark.extra_info["title"] = title
    benchmark.extra_info["figures"] = [figure.to_dict() for figure in figures]
    benchmark.extra_info["missing"] = {}
