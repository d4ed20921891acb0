# SPDX-License-Identifier: Apache-2.0
"""Several runs in one output: the rank, name and time axis of each, and what it says of itself."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from pyinstrument_gpu.core.paths import without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError

_ENVIRONMENT = (
    *("run_id", "host", "rank", "world_size", "pid", "started", "command"),
    *("version", "python", "torch", "cuda", "gpus"),
)

_IN_STATISTICS = (
    *("ring_full", "span_history", "step_history", "disk_error", "device_history"),
    "syncs",
)
"""What was dropped for these causes is missing in the history only."""

_MAX_COMMAND_CHARACTERS = 200


class NoStartTimeError(ExportError):
    """A run of several does not know when it began.

    Args:
        position: its place among the runs.
        name: what to call it.
    """

    def __init__(self, position: int, name: str | None = None) -> None:
        super().__init__(
            f"{name or f'run {position + 1}'} has no start time, so it cannot be placed on one "
            "time axis with the others: export it alone"
        )
        self.position = position


def ranks_of(runs: Sequence[Run]) -> list[int]:
    """The rank of each run. Where one has none, or two have the same, they are numbered as they
    come instead."""
    ranks = [run.environment.get("rank") for run in runs]
    known = [rank for rank in ranks if rank is not None]
    return known if len(set(known)) == len(runs) else list(range(len(runs)))


def offsets_ns_of(runs: Sequence[Run]) -> list[int]:
    """Return what to add to the times of each run so that all count from the begin of the earliest.

    The begin of a run is known by the wall clock of its machine, so ranks of one machine are
    aligned well, and those of several as well as their clocks agree.

    Raises:
        NoStartTimeError: there are several runs, and one does not know when it began.
    """
    if len(runs) == 1:
        return [0]
    begins_ns = []
    for position, run in enumerate(runs):
        begin_ns = run.began_realtime_ns
        if begin_ns is None:
            raise NoStartTimeError(position)
        begins_ns.append(begin_ns)
    return [begin_ns - min(begins_ns) for begin_ns in begins_ns]


def process_name(run: Run, rank: int | None = None) -> str:
    """Return the run's rank, if any, and its command, without folders: "rank 3: python train.py".

    Args:
        rank: what its rank is called; None for that of the run itself.
    """
    program, *arguments = run.environment.get("command") or ["process"]
    name = shlex.join([os.path.basename(program), *arguments])[:_MAX_COMMAND_CHARACTERS]
    rank = run.environment.get("rank") if rank is None else rank
    return name if rank is None else f"rank {rank}: {name}"


class UniqueIds:
    """Numbers for processes and rows, from 1 to below a limit, each once: their own where these can
    be told apart by them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._taken = {0}

    def assign(self, wanted: Sequence[int]) -> list[int]:
        """Return for each its wanted number, or a free one where that cannot be."""
        ids: list[int | None] = []
        for number in wanted:
            possible = 0 < number < self._limit and number not in self._taken
            ids.append(number if possible else None)
            if possible:
                self._taken.add(number)
        return [self.free() if number is None else number for number in ids]

    def free(self) -> int:
        """A number above all others where there is one: rows are shown in the order of theirs."""
        number = max(self._taken) + 1
        if number == self._limit:
            number = next(each for each in count(1) if each not in self._taken)
        self._taken.add(number)
        return number


def run_facts(run: Run) -> dict[str, Any]:
    """Return where the run was recorded, and what is missing, as values for JSON.

    `spans` are those that the run has, and `spans_recorded` those that ended. Where modules were
    watched, `passes` and `passes_recorded` are the same of passes through them.
    """
    passes = {"passes": len(run.module_spans), "passes_recorded": run.modules.passes}
    return {
        **{name: run.environment[name] for name in _ENVIRONMENT if name in run.environment},
        "duration_ns": run.duration_ns,
        "complete": run.complete,
        "spans": len(run.spans),
        "spans_recorded": run.phases_recorded,
        **(passes if run.modules else {}),
        "dropped": _dropped(run),
        "notes": list(run.notes),
    }


def json_text(value: Any) -> bytes:
    """The value as JSON in UTF-8."""
    # Not as ASCII: Perfetto shows the escapes of what is beyond it as they are.
    return without_surrogates(json.dumps(value, ensure_ascii=False)).encode()


def metadata(runs: Sequence[Run]) -> dict[str, Any]:
    """The facts of all runs, in their order, as one object."""
    return {"runs": [run_facts(run) for run in runs]}


def losses(run: Run, is_summary: bool = False) -> str | None:
    """Return in words what an export of the run lacks, of its history or of its statistics
    (`is_summary`); None if nothing."""
    found = [
        f"{recorded - there:,} of {recorded:,} {what} are missing"
        for what, there, recorded in _counts(run, is_summary)
        if recorded > there
    ]
    causes = {
        cause: count
        for cause, count in _dropped(run).items()
        if not (is_summary and cause in _IN_STATISTICS)
    }
    dropped = ", ".join(f"{cause} {count:,}" for cause, count in causes.items())
    if dropped:
        found.append(f"dropped: {dropped}")
    if not run.complete:
        found.append(f"the recording was not stopped, and ends at {run.duration_ns / 1e9:.3f} s")
    return "; ".join(found) or None


def _counts(run: Run, is_summary: bool) -> Iterator[tuple[str, int, int]]:
    """Yield for each thing that can be exported how many there are, and how many were recorded."""
    phases = run.statistics.values()
    if is_summary:
        yield "spans", sum(phase.count for phase in phases), run.phases_recorded
        return
    yield "spans", len(run.spans), run.phases_recorded
    steps = run.step_totals.count + run.profiled_totals.count
    yield "steps", len(run.steps.closed), steps
    device_times = sum(phase.device.count for phase in phases if phase.device is not None)
    yield "device times", int(np.count_nonzero(run.span_device_ns >= 0)), device_times
    yield "passes through modules", len(run.module_spans), run.modules.passes


def _dropped(run: Run) -> dict[str, int]:
    causes = {**run.dropped, "syncs": run.syncs.dropped}
    return {cause: count for cause, count in causes.items() if count}
