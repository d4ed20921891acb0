# SPDX-License-Identifier: Apache-2.0
"""Things that hold the thread of a step up, as causes of slow steps, without a section."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.contention import is_contended, step_waits_ns
from pyinstrument_gpu.aspects.slow_step_causes import (
    COMPUTING_KIND,
    DISK_KIND,
    DOCUMENT,
    FAULTS_KIND,
    GIL_KIND,
    PRESSURE_KIND,
    STEAL_KIND,
)
from pyinstrument_gpu.aspects.slow_step_causes.data import SlowStepCauses
from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.cause import Cause, Precedence, amounts_of
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import printable

_OF_STEPS = {
    STEAL_KIND: Cause(
        name="steal",
        words="other virtual machines on its host",
        remedy="use a machine with processors of its own",
        precedence=Precedence.PAUSE,
        is_idle=True,
    ),
    FAULTS_KIND: Cause(
        name="page_faults",
        words="page faults",
        remedy="keep buffers rather than making them anew, or have the allocator keep memory "
        "(MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_, jemalloc)",
        precedence=Precedence.HINDRANCE,
    ),
    DISK_KIND: Cause(
        name="disk_pages",
        words="pages of memory that were read from a disk",
        remedy="read files that are mapped into memory ahead, and keep the program from being "
        "swapped out",
        precedence=Precedence.HINDRANCE,
        is_idle=True,
    ),
    PRESSURE_KIND: Cause(
        name="memory_pressure",
        words="stalls by a shortage of memory",
        remedy="give the container or the machine more memory, or run fewer workers",
        precedence=Precedence.HINDRANCE,
    ),
    COMPUTING_KIND: Cause(
        name="computing",
        words="computing for longer",
        remedy="see whether these steps have more to compute; if not, other work shares their "
        "processor",
        precedence=Precedence.REST,
        is_advised=False,
        is_essential=True,
    ),
}
"""Causes of which the sum in a step is known."""


class SlowStepCausesAspect(DocumentAspect[Run, None]):
    """The things that hold the thread of a step up."""

    name = "slow_step_causes"
    written_as = DOCUMENT
    document = SlowStepCauses
    noted = "hindrances"

    def causes(self, run: Run) -> Iterator[Cause]:
        known: SlowStepCauses | None = run.slow_step_causes
        if known is None:
            return
        for kind, cause in _OF_STEPS.items():
            if kind != PRESSURE_KIND or known.has_pressure:
                amounts = run.noted_causes.of_kind(kind)[1]
                # A warning says so of the whole run.
                is_said = kind == STEAL_KIND and is_contended(run)
                if kind == COMPUTING_KIND:
                    yield _asleep(run, amounts)
                yield replace(
                    cause,
                    amounts=amounts,
                    known=amounts["step"],
                    is_advised=cause.is_advised and not is_said,
                )
        if not known.is_gil_seen:
            return
        intervals, looked_at = run.noted_causes.of_kind(GIL_KIND)
        numbers = {thread: place for place, (thread, _) in enumerate(known.threads)}
        intervals["note"] = [numbers.get(one, -1) for one in intervals["note"].tolist()]
        intervals = intervals[np.isin(intervals["thread"], run.steps.closed["thread"])]
        other = _thread_of_most(run, intervals, known)
        yield Cause(
            name="gil_wait",
            words="waiting for the GIL",
            remedy=f"while steps run, do less in {other}, or do it in a process",
            precedence=Precedence.PAUSE,
            intervals=intervals,
            known=looked_at["step"],
            notes=tuple(f"{printable(name)} ran meanwhile" for _, name in known.threads),
            is_idle=True,
            is_essential=True,
        )

    def unknown(self, run: Run) -> Iterator[str]:
        known: SlowStepCauses | None = run.slow_step_causes
        if known is not None and not known.is_gil_seen:
            yield "Waits for the GIL: the kernel does not tell in which system call a thread waits."


def _thread_of_most(run: Run, intervals: NDArray[np.void], known: SlowStepCauses) -> str:
    """Return the thread that ran during most of some waits, in words."""
    time_ns = np.zeros(len(known.threads))
    is_named = intervals["note"] >= 0
    np.add.at(time_ns, intervals["note"][is_named], durations_ns_of(intervals[is_named]))
    if not len(time_ns) or time_ns.max() <= durations_ns_of(intervals).sum() / 2:
        return "other threads of Python"
    number, name = known.threads[int(time_ns.argmax())]
    for thread, file, line, code in known.targets:
        if thread == number:
            return (
                f"the thread {printable(name)} ({run.name_of_line(SourceLine(file, line, code))})"
            )
    return f"the thread {printable(name)}"


def _asleep(run: Run, ran: NDArray[np.void]) -> Cause:
    """Return the time in which a step's thread neither ran nor waited for a processor, where that
    is known; what other virtual machines took is not in it. It comes before what the thread
    computed, which is a part of other causes, and leaves to others what they may explain."""
    steps = run.steps.closed
    place = places_in(steps["index"], ran["step"])
    ran, steps = ran[place >= 0], steps[place[place >= 0]]
    stolen = run.noted_causes.of_kind(STEAL_KIND)[1]
    times_ns = durations_ns_of(steps) - ran["time_ns"]
    waits_ns = np.maximum(np.nan_to_num(step_waits_ns(run, steps)), 0)
    times_ns -= waits_ns.astype(np.int64)
    of_stolen = places_in(steps["index"], stolen["step"])
    np.subtract.at(times_ns, of_stolen[of_stolen >= 0], stolen["time_ns"][of_stolen >= 0])
    return Cause(
        name="asleep",
        words="asleep, waiting for another thread, a disk or a timer",
        remedy="see which line waits: the samples of the stack in report -v",
        precedence=Precedence.REST,
        amounts=amounts_of(steps["index"], np.maximum(times_ns, 0)),
        known=steps["index"],
        is_advised=False,
        is_idle=True,
    )


ASPECT = SlowStepCausesAspect()
