# SPDX-License-Identifier: Apache-2.0
"""What the GPU benchmarks make of whole programs, on runs and traces made by hand, on the simulated
driver, and with programs that have no device."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import beside_profiler, recorded_program, savings_got
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.profiler_trace import ProfiledStep, read_trace, steps_of
from benchmarks.gpu.program import PROFILED
from benchmarks.gpu.recorded_program import record
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite
from tests.helpers.device_program import attached_cuda
from tests.helpers.made_runs import run_of
from tests.helpers.sync_program import STEPS, Launch, Made, Sync, ran

MS = 1_000_000
TINY = ("--device", "cpu", "--tiny", "--steps", "40")


def by_name(figures: list[Figure]) -> dict[str, Figure]:
    return {figure.name: figure for figure in figures}


# --- torch.profiler's trace ---


def event(category: str, name: str, ts: float, dur: float, **more: Any) -> dict[str, Any]:
    arguments = {key: more.pop(key) for key in list(more) if key == "correlation"}
    return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur} | {
        "args": arguments,
        **more,
    }


def test_a_traces_steps_have_their_times() -> None:
    trace = [
        {"ph": "M", "name": "process_name"},
        event("user_annotation", "ProfilerStep#7", 100, 50),
        event("user_annotation", "ProfilerStep#8", 150, 60),
        event("gpu_user_annotation", "ProfilerStep#7", 110, 500, tid=9),
        # Launched in step 7; the device is late.
        event("cuda_runtime", "cudaLaunchKernel", 110, 2, correlation=1),
        event("cuda_driver", "cuLaunchKernel", 120, 2, correlation=2, tid=2),
        event("kernel", "first", 140, 10, correlation=1, tid=9),
        event("gpu_memcpy", "second", 170, 20, correlation=2, tid=9),
        event("kernel", "of no launch", 1000, 20, correlation=3, tid=9),
        # Step 8 waits in an operator, where two calls wait, and in a call of its own.
        event("cpu_op", "aten::item", 160, 20),
        event("cpu_op", "aten::_local_scalar_dense", 161, 18),
        event("cuda_runtime", "cudaMemcpyAsync", 162, 3, correlation=4),
        event("cuda_runtime", "cudaStreamSynchronize", 165, 10),
        event("cuda_runtime", "cudaStreamSynchronize", 176, 1),
        event("cpu_op", "aten::add", 185, 5),
        event("cuda_runtime", "cudaDeviceSynchronize", 190, 7),
        # Elsewhere at the same time, and outside of all steps.
        event("cpu_op", "aten::mul", 159, 30, tid=2),
        event("cuda_runtime", "cudaDeviceSynchronize", 500, 7),
    ]
    assert steps_of(trace) == {
        7: ProfiledStep(host_ns=50_000, device_ns=50_000, blocked_ns=0),
        8: ProfiledStep(host_ns=60_000, device_ns=None, blocked_ns=27_000),
    }


# --- beside the profiler ---


def run_of_steps(count: int, waits: bool = True) -> Run:
    """Steps of 10 ms with 1 ms between; two phases on the device, 8 ms from begin to end, in every
    second step; a wait of 2 ms."""
    begins_ns = [11 * MS * step for step in range(count)]
    spans = []
    for step, begin_ns in enumerate(begins_ns):
        for phase in (0, 1):
            first_ns = begin_ns + 4 * MS * phase
            device = (first_ns, first_ns + 4 * MS) if step % 2 == 0 else (-1, -1)
            where = (0, 0) if step % 2 == 0 else (-1, -1)
            times = (first_ns, first_ns + 3 * MS, *device, -1, 1)
            spans.append((phase, phase, step, 0, 0, *where, *times))
    steps = [(i, at, at + 10 * MS, math.nan, 1, True, 0) for i, at in enumerate(begins_ns)]
    events = [(at + 5 * MS, 2 * MS, 4, 0, -1, i, 0) for i, at in enumerate(begins_ns)]
    site = SyncSite("train.py", 7, "main", SyncKind.ITEM, False)
    return run_of(
        spans,
        path_parents=[-1, -1],
        steps=Steps(np.array(steps, STEP_DTYPE)),
        syncs=Syncs((site,), np.array(events if waits else [], SYNC_DTYPE), ((0, 10**12),)),
    )


def test_sums_over_the_same_steps_stand_beside_each_other() -> None:
    profiled = {step: ProfiledStep(10 * MS, 8 * MS, 2 * MS) for step in range(3, 13)}
    profiled[12] = ProfiledStep(500 * MS, 8 * MS, 2 * MS)  # in which the profiler ends
    figures = by_name(list(beside_profiler.comparison("x", run_of_steps(20), profiled)))
    assert figures["x: steps that both have"].value == 8
    assert figures["x: of these with device times"].value == 4
    for label in ("host time", "device time", "blocked time"):
        apart = figures[f"x: {label}, how far the sums are apart"]
        assert (apart.value, apart.verdict) == (0, "met")
    assert "32.000 of 32.000 ms" in figures["x: device time, how far the sums are apart"].note

    profiled[5] = ProfiledStep(10 * MS, 8 * MS, 4 * MS)
    figures = by_name(list(beside_profiler.comparison("x", run_of_steps(20), profiled)))
    blocked = figures["x: blocked time, how far the sums are apart"]
    assert blocked.value == pytest.approx(100 / 9)
    assert blocked.verdict == "not met"


# --- savings ---


def simulated_program(wait: str) -> tuple[Run, float]:
    """The device is the slower one: a read in each step keeps the host from running ahead, and a
    copy from pageable memory waits too."""
    program = Made(
        ((Launch(3 * MS, 1 * MS), Launch(10_000, 6 * MS)),),
        (
            Sync(0, 1, False, 15_000, 3_000, 0),
            Sync(0, 0, True, 15_000, 500_000, 1, SyncKind.H2D_PAGEABLE, 4 << 20),
        ),
        (0,) * STEPS,
    )
    if wait != "item":
        program = program.without(0)
    if wait != "copy":
        program = program.with_pinned_copies()
    with attached_cuda() as cuda:
        done = ran(program, cuda)
        return done.run, done.elapsed_ns / STEPS


def test_what_was_predicted_stands_beside_what_was_got() -> None:
    waits = ("item", "copy")
    figures = by_name(list(savings_got.of_waits(simulated_program, 2, 1000, waits)))
    step = figures["a step without a wait"]
    assert step.note == "2 runs"
    for sync in waits:
        got = figures[f"{sync}: got"]
        assert got.goal is not None
        assert got.verdict == "met"
        assert got.value > 0
        likely = figures[f"{sync}: predicted as likely"]
        assert 0 < likely.value <= got.goal
        assert likely.low is not None
        assert likely.high is not None
        assert likely.low <= likely.value <= likely.high
        # What is likely is judged only where a reader sees it.
        is_told = likely.note.endswith("shown in 2 of 2 runs")
        off = figures.get(f"{sync}: got less what was likely")
        assert (off is not None) == is_told
        if off is not None:
            with_wait_us = step.value + got.value
            assert off.value == pytest.approx(100 * (got.value - likely.value) / with_wait_us)


# --- identical runs ---


# --- the program itself ---


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_a_program_that_is_profiled_while_it_is_recorded(model: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    run = record(tmp_path, model, "--profile", str(trace), *TINY)
    assert run.step_totals.count == 40
    profiled = read_trace(trace)
    assert 10 < len(profiled) <= PROFILED
    figures = by_name(list(beside_profiler.comparison(model, run, profiled)))
    assert figures[f"{model}: steps that both have"].value == len(profiled) - 2
    assert figures[f"{model}: of these with device times"].value == 0


@pytest.mark.slow
def test_a_run_and_its_page_are_kept(tmp_path: Path) -> None:
    figures = by_name(list(recorded_program.figures(tmp_path, *TINY)))
    assert figures["steps of the run that is kept"].value == 35
    assert "<html" in (tmp_path / "gpu-run.html").read_text()
    assert len(Run.load(tmp_path / "gpu-run.gpurun").steps.closed) == 35


def test_a_program_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "program.py"
    program.write_text("import sys; sys.exit(f'no model {sys.argv[1]}')")
    monkeypatch.setattr(recorded_program, "PROGRAM", program)
    with pytest.raises(RuntimeError, match=r"program\.py bert ended .* 1:\nno model bert"):
        record(tmp_path, "bert")
