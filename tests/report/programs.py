# SPDX-License-Identifier: Apache-2.0
"""Runs of which documents are made: from nothing at all to all that can be recorded."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.compilations.data import (
    Compilation,
    Compilations,
    GraphBreak,
    ReachedLimit,
    on_timeline,
)
from pyinstrument_gpu.aspects.energy.data import ENERGY_DTYPE, GpuEnergy
from pyinstrument_gpu.aspects.memory.data import (
    MEMORY_POINT_DTYPE,
    HeldMemory,
    MedianBytes,
    Memory,
    ModuleBytes,
    OutOfMemory,
    PhaseBytes,
    PhaseMemory,
    StepMemory,
)
from pyinstrument_gpu.aspects.modules.data import (
    MODULE_SPAN_DTYPE,
    ModulePass,
    Modules,
    fold_module_spans,
)
from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations
from pyinstrument_gpu.aspects.startup.data import Interval, Startup
from pyinstrument_gpu.core.file.json_document import PathName
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE
from tests.helpers import made_runs
from tests.helpers.device_program import attached_cuda
from tests.helpers.sync_program import Launch, Made, Sync, ran

MS = 1_000_000
MIB = 1 << 20


def program(phases: int = 2) -> Run:
    """Phases on the device, of which the first is read at once, and a wait for the loader."""
    first, other = (Launch(10_000, 5 * MS),), (Launch(20 * MS, 2_000),)
    made = Made(
        phases=(first, *(other,) * (phases - 1)),
        syncs=(Sync(0, 0, False, 15_000, 3_000, 0),),
        loader_ns=(MS,) * 50,
    )
    with attached_cuda() as cuda:
        run = ran(made, cuda).run
    run.environment["overhead"] = {"phase_ns": 50.0, "step_ns": 200.0}
    run.device_timing = DeviceTimingSummary(1, 200, 300_000)
    return run


def full_run() -> Run:
    """A common run of eight phases of which everything was recorded."""
    return with_everything(program(phases=7))


def with_everything(run: Run, layers: int = 12) -> Run:
    """The run, with all that else can be recorded, of so many layers of a model."""
    run.environment |= {"command": ["python", "train.py", "--epochs", "3"], "host": "a machine"}
    run.environment |= {"torch": "2.13.0", "gpus": ["NVIDIA H100"], "run_id": "0123456789abcdef"}
    parts = [f"layers.{i}{part}" for i in range(layers) for part in ("", ".attn", ".mlp")]
    run.module_names = ("embed", *parts, "norm", "head")
    run.module_spans = np.array(
        [
            (begin_ns, begin_ns + MS, number, kind, step, 0, -1, 0, -1, -1, -1)
            for step, begin_ns in zip(
                run.steps.array["index"].tolist(), run.steps.array["begin_ns"].tolist(), strict=True
            )
            for number in range(len(run.module_names))
            for kind in (ModulePass.FORWARD, ModulePass.BACKWARD)
        ],
        MODULE_SPAN_DTYPE,
    )
    run.modules = Modules(fold_module_spans(run.module_spans, run.module_names))
    left = MedianBytes(MIB, MIB // 2, 2 * MIB)
    points = [(step, (100 + step) * MIB, 400 * MIB) for step in range(40)]
    run.memory = Memory(
        device=0,
        steps=40,
        peak_bytes=300 * MIB,
        reserved_peak_bytes=400 * MIB,
        phases={
            path: PhaseMemory(path, 40, 40, 100 * MIB, 101 * MIB, 300 * MIB, number > 2, left, left)
            for number, path in enumerate(map(PathName, run.paths))
        },
        points=np.array(points, MEMORY_POINT_DTYPE),
        held=StepMemory(
            step=3,
            begin=HeldMemory(
                60 * MIB,
                0,
                MIB,
                120 * MIB,
                2 * MIB,
                80 * MIB,
                (ModuleBytes("head", 40 * MIB),),
                270 * MIB,
            ),
            end=HeldMemory(60 * MIB, 60 * MIB, MIB, 120 * MIB, 2 * MIB, 0, (), 250 * MIB),
            activation_modules=(ModuleBytes("layers.0.attn", 50 * MIB), ModuleBytes("head", MIB)),
            phases=(PhaseBytes(PathName(run.paths[0]), 70 * MIB), PhaseBytes(None, 10 * MIB)),
            optimizers=1,
            unseen=2,
            cost_ns=2 * MS,
        ),
    )
    run.metric_names = ("loss",)
    run.metrics = np.array([(i, i, 0, 0, 2.0 / (i + 1)) for i in range(3)], METRIC_DTYPE)
    run.compilations = compilations([6, 16, 26])
    run.compilation_spans = on_timeline(run.compilations)
    run.environment |= {"anchor": {**made_runs.ANCHOR, "monotonic_ns": 10_000 * MS}}
    run.startup = startup(10_000)
    run.energy = (
        GpuEnergy(0, "GPU-0123", np.array([(0, 0), (run.duration_ns, 700_000)], ENERGY_DTYPE)),
    )
    run.operations = Operations(
        profiled=((4, 5),),
        first_step=4,
        last_step=5,
        steps=2,
        operations=tuple(
            Operation(f"aten::op{i}", run.paths[i % 3], 4.0, MS / 2, MS, 4.0) for i in range(12)
        ),
        device=DeviceUse(1, 20 * MS, 25 * MS),
        stopped_ns=300 * MS,
        trace="trace.json",
    )
    return run


def startup(recording_ms: int) -> Startup:
    """That of a program whose recording begins then, after three seconds."""

    def interval(part: Any, name: str, begin_ms: int, took_ms: int, line: int) -> Interval:
        begin_ns = (recording_ms + begin_ms) * MS
        times = {"begin_ns": begin_ns, "end_ns": begin_ns + took_ms * MS}
        return Interval(part=part, name=name, file="/p/gpt.py", line=line, **times)

    return Startup(
        process_ns=(recording_ms - 4_000) * MS,
        launched_ns=(recording_ms - 3_900) * MS,
        watched_ns=(recording_ms - 3_800) * MS,
        program_ns=(recording_ms - 3_700) * MS,
        intervals=(
            interval("import", "torch", -3_700, 1_500, 2),
            interval("model", "GPT", -2_000, 400, 60),
            interval("import", "torch._dynamo", -1_500, 1_300, 64),
            interval("optimizer", "AdamW", -1_520, 1_325, 64),
        ),
        short_ns={"import": 20 * MS},
    )


def compilations(begins_ms: Sequence[int], each_ns: int = MS) -> Compilations:
    """A function that is compiled at these times, in one step after the other, breaks its graph
    each time and then reaches the limit."""
    place: dict[str, Any] = {"function": "forward", "file": "/p/gpt.py", "line": 88}
    reason = "tensor 'x' size mismatch at index 0. expected {}, actual {}"
    return Compilations(
        count=len(begins_ms),
        total_ns=each_ns * len(begins_ms),
        compilations=tuple(
            Compilation(
                begin_ns=begin_ms * MS,
                duration_ns=each_ns,
                kind="dynamo",
                thread=0,
                step=number,
                path=0,
                recompiled=number > 0,
                reason=reason.format(32, 32 - number) if number else None,
                inductor_ns=each_ns // 2,
                **place,
            )
            for number, begin_ms in enumerate(begins_ms)
        ),
        limits=(
            ReachedLimit(
                at_ns=28 * MS, limit="recompile_limit (8)", reason=reason.format(31, 4), **place
            ),
        ),
        breaks=(
            GraphBreak(
                reason="Failed to trace `print`: it is a builtin",
                count=len(begins_ms),
                **place | {"line": 92},
            ),
        ),
    )


def out_of_memory() -> Run:
    return without_memory(program())


def without_memory(run: Run) -> Run:
    """The run, which ended because the memory did."""
    event = OutOfMemory(
        path=PathName(run.paths[0]),
        step=7,
        module="layers.3",
        device=0,
        request_bytes=512 * MIB,
        limit_bytes=1024 * MIB,
        free_bytes=256 * MIB,
        allocated_bytes=700 * MIB,
        reserved_bytes=768 * MIB,
        time_ns=5 * MS,
        settings=None,
    )
    run.memory = Memory(device=0, out_of_memory_count=1, out_of_memory=(event,))
    run.complete = False
    run.open_phases = (OpenPhase(run.paths[0], 0, MS, -1, 0),)
    return run


def run_of_phases(count: int) -> Run:
    """A run without steps in which so many phases were executed once."""
    spans = [(i, i, -1, 0, 0, -1, -1, i * MS, i * MS + MS, -1, -1, -1, 0) for i in range(count)]
    names = [f"phase {i}" for i in range(count)]
    parents = [-1] * count
    return made_runs.run_of(spans, names, path_parents=parents, duration_ns=count * MS)


def diverged() -> Run:
    return with_lost_loss(program())


def with_lost_loss(run: Run) -> Run:
    run.metric_names = ("loss",)
    run.metrics = np.array([(1, 0, 0, 0, 2.0), (2, 1, 0, 0, np.nan)], METRIC_DTYPE)
    return run


RUNS: Mapping[str, Callable[[], Run]] = {
    "nothing": cache(lambda: made_runs.run_of([])),
    "off": cache(lambda: Run.empty("it was off")),
    "no steps": cache(lambda: run_of_phases(3)),
    "program": cache(program),
    "all": cache(full_run),
    "out of memory": cache(out_of_memory),
    "diverged": cache(diverged),
}
"""Made once, and never changed."""
