# SPDX-License-Identifier: Apache-2.0
"""What is said of a run whose file lacks a part of it."""

from __future__ import annotations

import numpy as np

from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from tests.helpers.forged_file import with_changed_steps, without
from tests.helpers.made_runs import run_of
from tests.helpers.run_writer import encode

MS = 1_000_000
PROFILED = (BlockType.OPERATIONS, BlockType.STATISTICS)


def made(profiled: tuple[tuple[int, int], ...] = (), **parts: object) -> bytes:
    """A file of a run of six steps, which take 10 ms each, and 1 s where they were profiled."""
    operations = Operations(profiled=profiled) if profiled else None
    took_ns = [
        1000 * MS if any(first <= step <= last for first, last in profiled) else 10 * MS
        for step in range(6)
    ]
    ends_ns = np.cumsum(took_ns).tolist()
    steps = [
        (step, end_ns - length_ns, end_ns, float("nan"), 1, True, 0)
        for step, (end_ns, length_ns) in enumerate(zip(ends_ns, took_ns, strict=True))
    ]
    spans = [
        (0, 0, step, 0, 0, -1, -1, begin_ns, end_ns, -1, -1, -1, 1)
        for step, begin_ns, end_ns, *_ in steps
    ]
    about = {"duration_ns": ends_ns[-1], "complete": True, **parts}
    about |= {"steps": Steps(np.array(steps, STEP_DTYPE)), "operations": operations}
    return bytes(encode(run_of(spans, ("forward",), **about)))


def test_profiled_steps_are_known_where_what_was_profiled_is_lost() -> None:
    whole = Run.from_bytes(made(profiled=((1, 2), (4, 4))))
    cut = Run.from_bytes(without(made(profiled=((1, 2), (4, 4))), *PROFILED))

    assert whole.notes == ()
    assert (cut.step_totals, cut.profiled_totals) == (whole.step_totals, whole.profiled_totals)
    assert cut.step_totals.duration.max_ns == 10 * MS
    assert cut.phases["forward"].count == 3
    assert cut.operations == Operations(profiled=((1, 2), (4, 4)))
    assert "what torch.profiler saw is missing; the steps that it slowed are counted apart" in (
        cut.notes
    )
    assert "All times leave out 3 profiled steps" in cut.report(verbose=True, width=100)


def test_a_window_that_is_not_in_what_was_profiled_is_known() -> None:
    data = without(made(profiled=((1, 2), (4, 4))), BlockType.OPERATIONS)
    earlier = made(profiled=((1, 2),))
    # The document of the first window, and the steps of both.
    run = Run.from_bytes(with_changed_steps(earlier, 4, flags=5))

    assert run.operations == Operations(profiled=((1, 2), (4, 4)))
    assert Run.from_bytes(data).step_totals.count == 3


def test_steps_of_an_earlier_version_that_may_have_been_profiled_are_told() -> None:
    data = with_changed_steps(made(profiled=((1, 2),)), slice(None), flags=1)
    run = Run.from_bytes(without(data, BlockType.OPERATIONS))

    assert (
        "which steps were profiled is not known: times of phases and steps may include them"
        in run.notes
    )


def test_steps_that_ended_after_the_last_heartbeat_are_told() -> None:
    said = "steps ended after the last heartbeat: the statistics may lack some of their phases"
    run = Run.from_bytes(made(complete=False, duration_ns=40 * MS))

    assert f"the last 2 {said}" in run.notes
    assert not any(said in note for note in Run.from_bytes(made(complete=False)).notes)
