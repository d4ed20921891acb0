# SPDX-License-Identifier: Apache-2.0
"""One step of a run in detail: what each phase took in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.step_times import phases_ns
from pyinstrument_gpu.model.groups import groups
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SpanFlag, span_scopes
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.model.steps import Step


@dataclass(frozen=True)
class PhaseInStep:
    """A phase in one step: host time as far as it lies inside the step, the stream time of whole
    spans (None where none is known), and the step in which the first of them began."""

    calls: int
    host_ns: int
    stream_ns: int | None
    timed_calls: int
    since_step: int
    outlasts_step: bool
    has_unfinished_device_work: bool


@dataclass(frozen=True)
class StepDetail:
    """One step, with the phases of its own thread and of other threads by path. `total_ns` is its
    duration so far, where it had not ended."""

    step: Step
    total_ns: int
    phases_ns: int
    is_timed: bool
    phases: Mapping[int, PhaseInStep]
    other_threads: Mapping[int, PhaseInStep]

    @property
    def unattributed_ns(self) -> int:
        return self.total_ns - self.phases_ns


def step_detail(run: RunData, kept_steps: NDArray[np.void], index: int) -> StepDetail:
    """Of a phase that began in an earlier step or outlasts this one, the part inside it counts.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    step = run.steps.by_index(index)
    kept = kept_steps["index"]
    if index not in kept:
        raise KeyError(
            f"of step {index} only the duration is known: its spans are no longer kept"
            + (f"; those of steps {kept[0]} to {kept[-1]} are" if len(kept) else "")
        )
    row = kept_steps[kept == index]
    if step.duration_ns is None:
        row["end_ns"] = run.duration_ns
    spans, scopes = run.spans, span_scopes(run.spans)
    begun_here = spans["step"] == index
    open_before = (spans["step"] < index) & (spans["host_end_ns"] > step.begin_ns)
    of_thread = (scopes == Scope.STEP) & (spans["thread"] == step.thread)
    is_timed = ((spans["flags"] & SpanFlag.DEVICE) != 0) | (run.span_device_ns >= 0)
    return StepDetail(
        step=step,
        total_ns=int(row["end_ns"][0] - row["begin_ns"][0]),
        phases_ns=int(phases_ns(run, row)[0]),
        is_timed=bool(is_timed[begun_here].any()),
        phases=_phases(run, of_thread & (begun_here | open_before), row),
        other_threads=_phases(run, begun_here & (scopes == Scope.OTHER_THREADS), row),
    )


def _phases(
    run: RunData, chosen: NDArray[np.bool_], step: NDArray[np.void]
) -> dict[int, PhaseInStep]:
    spans, stream_ns = run.spans[chosen], run.span_device_ns[chosen]
    begins_ns = np.maximum(spans["host_begin_ns"], step["begin_ns"])
    inside_ns = np.maximum(np.minimum(spans["host_end_ns"], step["end_ns"]) - begins_ns, 0)
    by_path = {}
    for path, places in groups(spans["path"]):
        of_path, timed_ns = spans[places], stream_ns[places][stream_ns[places] >= 0]
        by_path[path] = PhaseInStep(
            calls=len(places),
            host_ns=int(inside_ns[places].sum()),
            stream_ns=int(timed_ns.sum()) if len(timed_ns) else None,
            timed_calls=len(timed_ns),
            since_step=int(of_path["step"].min()),
            outlasts_step=bool((of_path["host_end_ns"] > step["end_ns"]).any()),
            has_unfinished_device_work=bool((of_path["flags"] & SpanFlag.DEVICE_UNFINISHED).any()),
        )
    return by_path
