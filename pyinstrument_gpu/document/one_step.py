# SPDX-License-Identifier: Apache-2.0
"""The document of a single step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_detail import PhaseInStep
from pyinstrument_gpu.document.document import VERSION
from pyinstrument_gpu.model.paths import in_tree_order
from pyinstrument_gpu.model.run_data import RunData


@dataclass(frozen=True)
class PhaseOfStep:
    """A phase in one step.

    Attributes:
        host_ns: as far as it lies inside the step.
        stream_ns: of whole calls, the `timed_calls` of them.
        since_step: the step in which the first of its calls began.
        outlasts_step: whether it ended after the step.
    """

    path: str
    calls: int
    host_ns: int
    stream_ns: int | None
    timed_calls: int
    since_step: int
    outlasts_step: bool
    has_unfinished_device_work: bool


@dataclass(frozen=True)
class StepDocument:
    """One step of a run.

    Attributes:
        version: of this format.
        file: the run file.
        step: its index.
        begin_ns: since the begin of the recording.
        has_ended: false: `total_ns` is the time so far.
        is_complete: whether it ran to its end.
        phases_ns: what phases account for.
        unattributed_ns: the rest.
        is_timed_on_device: whether the device was timed in this step.
        device_timing: whether it was timed in others.
        phases: on the step's own thread, each before those inside it.
        other_threads: on other threads, while it was open.
        lost_spans: spans of the run that are missing, possibly from this step.
    """

    version: int
    file: str | None
    step: int
    begin_ns: int
    has_ended: bool
    is_complete: bool
    samples: float | None
    total_ns: int
    phases_ns: int
    unattributed_ns: int
    is_timed_on_device: bool
    device_timing: bool
    phases: tuple[PhaseOfStep, ...]
    other_threads: tuple[PhaseOfStep, ...]
    lost_spans: int


def step_document(run: RunData, index: int, file: str | None = None) -> StepDocument:
    """The document of the step with that index.

    Raises:
        KeyError: there is no such step, or its spans are no longer kept.
    """
    found, losses = analysis.of(run).step(index), analysis.of(run).span_losses

    def phases(by_path: Mapping[int, PhaseInStep]) -> tuple[PhaseOfStep, ...]:
        paths = in_tree_order(run.path_parents, by_path)
        return tuple(PhaseOfStep(run.paths[path], **asdict(by_path[path])) for path in paths)

    return StepDocument(
        version=VERSION,
        file=file,
        step=index,
        begin_ns=found.step.begin_ns,
        has_ended=found.step.duration_ns is not None,
        is_complete=found.step.complete,
        samples=found.step.samples,
        total_ns=found.total_ns,
        phases_ns=found.phases_ns,
        unattributed_ns=found.unattributed_ns,
        is_timed_on_device=found.is_timed,
        device_timing=run.device_timing is not None,
        phases=phases(found.phases),
        other_threads=phases(found.other_threads),
        lost_spans=0 if losses.are_located else losses.spans,
    )
