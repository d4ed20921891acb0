# SPDX-License-Identifier: Apache-2.0
"""Findings: the savings of a run that are worth an edit (advice), and those that may be (doubts).

Both come with the edit; docs/savings.md explains them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.correlation_points import Premises
from pyinstrument_gpu.analysis.savings import Change, Limit, ReplayedSaving, ReplayedSavings
from pyinstrument_gpu.analysis.time_budget import TimeBudgetEntries
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind

EDIT_SHARE = 0.01
"""The least share of the step that a change must save, by the low end of its range, to be
worth an edit. Of changes between steps it is the share of the elapsed time."""
HEADLINE_SHARE = 0.02
"""The least share that a change must be able to save to be in the verdict, or among what a short
report calls worth trying."""
TOGETHER = 1.2
"""How many times as much as any of them alone all syncs together must save to be named, at the low
end or at the high one."""
DOUBT_SHARE = 0.05
"""The least share that one which is not recommended may save, to be named all the same."""
LEADS = 2.0
"""How many times as much as anything certain a doubt must save, in the middle of its range and
theirs at the high end, to be named first."""
MIN_STEPS = 5
"""The least number of steps that a saving must be based on."""
BUSY_SHARE = 0.7
"""The proven busy share of the time above which the device is the limit."""

_READ_LATER = (
    "keep the value on the device and read it every N steps; for metrics, use MetricAccumulator"
)
_COPY_LATER = "copy into pinned memory with non_blocking=True and use it a step later"
_FIXED_SHAPES = "keep shapes fixed: use torch.where or multiply by the mask instead of selecting"
_NO_SYNCHRONIZE = "remove it: phases are timed on the device without it"
_EDITS = {
    SyncKind.TOLIST: _COPY_LATER,
    SyncKind.NUMPY: _COPY_LATER,
    SyncKind.CPU: _COPY_LATER,
    SyncKind.TO_CPU: _COPY_LATER,
    SyncKind.PRINT: "print every N steps",
    SyncKind.FORMAT: "log every N steps",
    SyncKind.DATA_DEPENDENT_SHAPE: _FIXED_SHAPES,
    SyncKind.BOOLEAN_INDEX: _FIXED_SHAPES,
    SyncKind.COMPARE: "compare on the device, and read the result every N steps",
    SyncKind.SYNCHRONIZE: _NO_SYNCHRONIZE,
    SyncKind.STREAM_SYNCHRONIZE: _NO_SYNCHRONIZE,
    SyncKind.EVENT_SYNCHRONIZE: _NO_SYNCHRONIZE,
}
_PIN = "use DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
_GRAPH = "make fewer, larger launches: torch.compile, CUDA graphs, or a larger batch"
_CHANGE_EDITS = {
    Change.COPIES: _PIN,
    Change.ALL_SYNCS: "remove them all: where one is left, the host waits there instead",
}
_LAUNCH_EDITS = {
    "optimizer": f"use a fused optimizer (fused=True), or {_GRAPH}",
    "zero_grad": "use zero_grad(set_to_none=True)",
}
TIMELINE = "pyinstrument-gpu export RUN -o trace.json"
PROFILE = "pyinstrument-gpu run --modules --profile-steps 3 PROGRAM"
_LESS_WORK = "reduce or speed up the device's work: AMP (torch.autocast), TF32, torch.compile"


@dataclass(frozen=True)
class Finding:
    """A finding that matters.

    Attributes:
        kind: "failure" (something went wrong), "advice" (this run proves that the edit is worth
            it), "doubt" (it may be: this run can't tell) or "guide" (what guides advise, with what
            it is worth here).
        about: what it is about.
        low_ns, high_ns: what a change would save per step; unknown where nothing says it.
        likely_ns: the likeliest in between, where the run tells.
        of_ns: the time per step that this is a part of.
        of: that in words: "step", or "elapsed time" with all between steps.
        promised: what guides say that it saves, as they write it.
        evidence: this run's numbers that say so.
        edit: what to change, where `about` does not say it.
        look: a command that shows more.
        is_rare: more than half of the saving lies in at most one step of ten; unknown where the run
            does not tell what is likely.
    """

    kind: str
    about: str
    low_ns: float | None
    high_ns: float | None
    likely_ns: float | None
    of_ns: float | None
    of: str | None
    promised: str | None
    evidence: str
    edit: str | None
    look: str | None
    is_rare: bool | None = None

    @property
    def is_certain(self) -> bool:
        """True if it is worth an edit for certain."""
        least_ns = EDIT_SHARE * (self.of_ns or 0.0)
        return self.kind == "advice" or (self.kind == "guide" and (self.low_ns or 0.0) >= least_ns)

    @property
    def high_share(self) -> float | None:
        """The most that it may save, as a share; None where nothing says it."""
        if self.high_ns is None or self.of_ns is None:
            return None
        return self.high_ns / self.of_ns if self.of_ns else 0.0

    @property
    def middle_ns(self) -> float:
        """The middle of the range; 0 where nothing says it."""
        return ((self.low_ns or 0.0) + (self.high_ns or 0.0)) / 2


def unpriced(kind: str, about: str, evidence: str, edit: str | None, look: str) -> Finding:
    """A finding of which it is not known what a change would save."""
    return Finding(kind, about, None, None, None, None, None, None, evidence, edit, look)


def twice_as_fast(
    function: str,
    line: str | None,
    saved_ns: tuple[float, float, float],
    of_ns: float,
    evidence: str,
) -> Finding:
    """Return what it would save if a function of the program took half as long.

    Args:
        function: its name; "" for the program itself.
        line: of the program in it; None where there is none.
        saved_ns: per step: the likely saving, the most and the least.
        of_ns: the time of a step.
        evidence: what says so.
    """
    place = f"{function} ({line})" if function and line else function or line
    likely_ns, high_ns, low_ns = saved_ns
    return Finding(
        kind="guide",
        about=f"make {place} twice as fast",
        low_ns=low_ns,
        high_ns=high_ns,
        likely_ns=likely_ns,
        of_ns=of_ns,
        of="step",
        promised=None,
        evidence=evidence,
        edit=None,
        look="pyinstrument-gpu report -v RUN",
    )


def in_order(found: Iterable[Finding]) -> list[Finding]:
    """Return what went wrong, what is worth an edit for certain, the largest saving first, then
    what may be. But doubts come before what is certain where they may save far more."""
    found = list(found)
    certain_ns = [one.high_ns for one in found if one.is_certain and one.high_ns]

    def place(one: Finding) -> int:
        leads = one.kind == "doubt" and one.middle_ns > LEADS * max(certain_ns, default=math.inf)
        return 0 if one.kind == "failure" else 1 if leads else 3 - one.is_certain

    return sorted(found, key=lambda one: (place(one), -one.middle_ns if one.is_certain else 0.0))


def advice(
    run: Run, found: ReplayedSavings, time_budget: TimeBudgetEntries, premises: Premises
) -> list[Finding]:
    """Return what is worth an edit for certain, by the middle of what it saves."""
    given = [
        _finding("advice", run, found, row, reason(row, found))
        for row in _candidates(found, premises)
        if row.low_ns >= EDIT_SHARE * found.whole_ns(row)
    ]
    given.sort(key=lambda one: one.middle_ns, reverse=True)
    return [*given, *_device_limit(run, found, time_budget.entries)]


def _finding(
    kind: str, run: Run, found: ReplayedSavings, saving: ReplayedSaving, evidence: str
) -> Finding:
    is_rare = saving.is_rare if saving.is_inside else None
    return Finding(
        kind=kind,
        about=subject(run, saving),
        low_ns=saving.low_ns,
        high_ns=saving.high_ns,
        likely_ns=saving.likely_ns if saving.is_told else None,
        of_ns=found.whole_ns(saving),
        of=saving.of,
        promised=None,
        evidence=f"{evidence}; most of it in at most one step of ten" if is_rare else evidence,
        edit=_edit(run, saving),
        look=PROFILE if saving.change == Change.LAUNCHES else TIMELINE,
        is_rare=is_rare,
    )


def doubts(run: Run, found: ReplayedSavings, premises: Premises) -> list[Finding]:
    """Return what may be worth an edit or not: the run can't tell. First what was not recorded,
    then what may save most."""
    rows = [
        row
        for row in _candidates(found, premises)
        if row.low_ns < EDIT_SHARE * found.whole_ns(row)
        and row.high_ns >= DOUBT_SHARE * found.whole_ns(row)
        and _launches(run, row) != 0
    ]
    rows.sort(key=lambda row: row.high_ns, reverse=True)
    doubted = [_finding("doubt", run, found, row, _doubt(run, row, premises)) for row in rows]
    return [*_unseen(run, found), *doubted]


def _unseen(run: Run, found: ReplayedSavings) -> Iterator[Finding]:
    is_timed = bool((run.span_device_ns >= 0).any())
    has_device = is_timed or bool(run.environment.get("gpus"))
    has_device |= run.syncs.are_priced and bool(len(run.syncs.events))
    if not has_device or found.steps < MIN_STEPS:
        return
    if not run.syncs.was_watched:
        yield unpriced(
            "doubt",
            "waits for the device",
            "syncs were not watched, so their cost is unknown",
            "record with pig.watch_syncs(), or with pyinstrument-gpu run",
            PROFILE,
        )
    if not is_timed:
        yield unpriced(
            "doubt",
            "launches",
            "the device was not timed, so what limits it is unknown",
            "record with device timing",
            PROFILE,
        )


def _candidates(found: ReplayedSavings, premises: Premises) -> Iterator[ReplayedSaving]:
    """Yield the savings worth a word. All syncs together are, where they save more than each alone.
    A wait for data need not become shorter by more workers if there are no cores for them."""
    if found.steps < MIN_STEPS:
        return
    alone = [row for row in found.rows if row.change in (Change.SYNC, Change.COPIES)]
    for row in found.rows:
        if _may_not_help(row, premises):
            row = replace(row, low_ns=0.0)
        is_more = row.low_ns >= EDIT_SHARE * found.whole_ns(row)
        is_more &= all(row.low_ns >= TOGETHER * one.low_ns for one in alone)
        is_more |= all(row.high_ns >= TOGETHER * one.high_ns for one in alone)
        if row.change != Change.ALL_SYNCS or (alone and is_more):
            yield row


def _may_not_help(saving: ReplayedSaving, premises: Premises) -> bool:
    """Return whether the edit may fail to do what it is for."""
    return saving.change == Change.DATA_WAIT and saving.is_inside and premises.lacks_cores


def _launches(run: Run, saving: ReplayedSaving) -> float | None:
    """Return how often the phase launches per profiled step, if that is known."""
    if saving.change != Change.LAUNCHES or run.operations is None:
        return None
    return run.operations.launches_per_step(run.paths[saving.path])


def _doubt(run: Run, saving: ReplayedSaving, premises: Premises) -> str:
    if saving.change == Change.LAUNCHES:
        doubt = "as far as this time is spent launching, and not on the program's own work"
        launches = _launches(run, saving)
        return doubt if launches is None else f"{doubt}; it launches {launches:,.0f} times per step"
    if _may_not_help(saving, premises):
        workers = f"{premises.loader_workers} loader worker"
        workers += "" if premises.loader_workers == 1 else "s"
        cores = f"{premises.cores} core" + ("" if premises.cores == 1 else "s")
        return f"{workers} and the loop have {cores}, so more workers may deliver no more"
    if saving.change == Change.DATA_WAIT and premises.loader_workers == 0:
        return "taking a batch from a worker costs time, too; only a try tells how much"
    has_no_device = run.environment.get("gpus") == []
    if saving.change == Change.DATA_WAIT and has_no_device and premises.one_rank is not False:
        return "handing over a finished batch may take as long"
    if premises.waits_in_allocator:
        return (
            f"{premises.allocation_retries:.2g} times per step, PyTorch's allocator gives memory "
            "back to the driver, and the host may wait there instead"
        )
    if premises.lacks_times:
        return f"{premises.lost_times:.0%} of the device's times were lost"
    if premises.doubt is not None:
        return f"when the stream looks busy it may be waiting {premises.doubt}"
    return "events don't tell how much work the device has behind it"


def subject(run: Run, saving: ReplayedSaving) -> str:
    if saving.change == Change.SYNC:
        site = run.syncs.sites[saving.site]
        return f"{site.kind.label} at {run.name_of_line(site.program)}"
    if saving.change == Change.LAUNCHES:
        return f"launches in {run.paths[saving.path]}"
    words: str = saving.change.value
    return (
        words
        if saving.is_inside or saving.change != Change.DATA_WAIT
        else f"{words}, between steps"
    )


def reason(saving: ReplayedSaving, found: ReplayedSavings) -> str:
    per = "per step" if saving.is_inside else "elapsed per step"
    time = f"takes {_ms(saving.time_ns)} of {_ms(found.whole_ns(saving))} ms {per}"
    if saving.low_ns < 0.95 * saving.time_ns:
        kept = f"{time}; saves {_range(saving)} ms"
        if saving.limit == Limit.DEVICE and found.busy_ns is not None:
            return f"{kept}, because the device has at least {_ms(found.busy_ns)} ms of work"
        may_move = "may stay or move" if saving.change == Change.DATA_WAIT else "may move"
        moves = "moves" if saving.high_ns < 0.95 * saving.time_ns else may_move
        return f"{kept}, because part of the wait {moves} elsewhere"
    return f"{time}; no other wait takes its place"


def _edit(run: Run, saving: ReplayedSaving) -> str:
    if saving.change == Change.SYNC:
        return _EDITS.get(run.syncs.sites[saving.site].kind, _READ_LATER)
    if saving.change == Change.LAUNCHES:
        name = run.names[run.path_names[saving.path]]
        return _LAUNCH_EDITS.get(name.rstrip("0123456789"), _GRAPH)
    if saving.change == Change.DATA_WAIT:
        return faster_loading(run)
    return _CHANGE_EDITS[saving.change]


def made_at(run: Run, kind: str) -> str:
    """Return where the program makes its loader or its optimizer, behind " at "; "" where that was
    not seen, or several may be meant. `kind`: see `SetupCall`."""
    call = run.setup_calls.only(kind)
    return "" if call is None else f" at {run.name_of_line(call.place)}"


def faster_loading(run: Run) -> str:
    """Return how to make batches come sooner. Without workers, other options are errors."""
    place = made_at(run, "loader")
    if run.program_facts.loader_workers == 0:
        return (
            f"load batches ahead of the step in worker processes: DataLoader(num_workers=N){place}"
        )
    workers, cores = run.program_facts.loader_workers, run.environment.get("cores")
    if workers is not None and cores is not None and workers >= cores:
        # More of them would take processors from each other.
        return f"in the DataLoader{place}, set persistent_workers=True, or raise prefetch_factor"
    raised = "raise num_workers or prefetch_factor, or set persistent_workers=True"
    return f"in the DataLoader{place}, {raised}"


def _device_limit(run: Run, found: ReplayedSavings, entries: NDArray[np.void]) -> list[Finding]:
    if found.steps < MIN_STEPS or found.busy_ns is None:
        return []
    if found.busy_ns < BUSY_SHARE * found.step_ns:
        return []
    entries = entries[(entries["busy_ns"] > 0) & (entries["path"] >= 0)]
    if not len(entries):
        return []
    busiest = int(np.argmax(np.bincount(entries["path"], entries["busy_ns"])))
    share = found.busy_ns / found.step_ns
    why = f"the device is busy for {_ms(found.busy_ns)} of {_ms(found.step_ns)} ms ({share:.0%})"
    return [unpriced("advice", run.paths[busiest], why, _LESS_WORK, PROFILE)]


def _range(saving: ReplayedSaving) -> str:
    low, high = _ms(saving.low_ns), _ms(saving.high_ns)
    return low if low == high else f"{low} to {high}"


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.3f}"
