# SPDX-License-Identifier: Apache-2.0
"""The garbage collector as an aspect of a run, and as a cause of slow steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu.aspects.garbage_collection import DOCUMENT, KIND
from pyinstrument_gpu.aspects.garbage_collection.data import GarbageCollection
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, duration, small_percent

_LEAST_SHARE = 0.01
_OLDEST = 15
"""The note of a collection is a number in the file. Interpreters have three generations."""


@dataclass(frozen=True)
class GarbageCollectionTimes:
    """The time that Python's garbage collector took.

    Attributes:
        counts: how often each generation was collected, the youngest first.
        freed: how many objects that freed.
        total_ns: how long the collections took together that the history has.
        share: of the time of the run; unknown where the history has lost the oldest of them.
        longest_ns: how long the longest took; unknown where there was none.
        longest_begin_ns: when it began.
    """

    counts: tuple[int, ...]
    freed: int
    total_ns: int
    share: float | None
    longest_ns: int | None
    longest_begin_ns: int | None


class GarbageCollectionAspect(DocumentAspect[Run, GarbageCollectionTimes]):
    """The time that Python's garbage collector takes."""

    name = "garbage_collection"
    written_as = DOCUMENT
    document = GarbageCollection
    noted = "the garbage collector"
    heading = "Garbage collector"
    section_type = GarbageCollectionTimes | None
    about = "what Python's garbage collector took."

    def section(self, run: Run) -> GarbageCollectionTimes | None:
        """Return the times; None where nothing was watched or collected."""
        known: GarbageCollection | None = run.garbage_collection
        if known is None or not any(one.count for one in known.generations):
            return None
        intervals, amounts = run.noted_causes.of_kind(KIND)
        times_ns = durations_ns_of(intervals)
        total_ns = int(times_ns.sum() + amounts["time_ns"].sum())
        longest = int(times_ns.argmax()) if len(times_ns) else None
        is_whole = known.is_whole and not run.noted_causes.since_ns
        return GarbageCollectionTimes(
            counts=tuple(one.count for one in known.generations),
            freed=sum(one.objects for one in known.generations),
            total_ns=total_ns,
            share=total_ns / run.duration_ns if is_whole and run.duration_ns else None,
            longest_ns=None if longest is None else int(times_ns[longest]),
            longest_begin_ns=None if longest is None else int(intervals["begin_ns"][longest]),
        )

    def parts(self, times: GarbageCollectionTimes, document: ReportedRun) -> Iterator[Part]:
        """Yield the section; nothing where it hardly took any time."""
        if times.share is not None and times.share < _LEAST_SHARE:
            return
        yield Sentence()
        yield Sentence("Python's garbage collector", "title")
        share = "" if times.share is None else f", {small_percent(times.share, 1)} of the time"
        yield Sentence(
            f"{counted(sum(times.counts), 'collection')} took {duration(times.total_ns)}{share}; "
            f"of the oldest generation there were {times.counts[-1]:,}"
        )
        if times.longest_ns is not None and times.longest_begin_ns is not None:
            yield Sentence(
                f"The longest took {duration(times.longest_ns)}, "
                f"{duration(times.longest_begin_ns)} into the run"
            )

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield collections, which hold up all threads, as a collecting thread keeps the GIL."""
        known: GarbageCollection | None = run.garbage_collection
        if known is None or not known.is_whole:
            return
        intervals, amounts = run.noted_causes.of_kind(KIND)
        intervals["thread"] = -1
        oldest = min(int(intervals["note"].max(initial=0)), _OLDEST)
        oldest = max(len(known.generations) - 1, oldest)
        yield Cause(
            name="garbage_collection",
            words="garbage collection",
            remedy="call gc.freeze() after the setup, or gc.disable(), and gc.collect() in between",
            precedence=Precedence.PAUSE,
            intervals=intervals,
            amounts=amounts,
            known=run.noted_causes.known(run.steps.closed),
            notes=tuple(f"generation {number}" for number in range(oldest + 1)),
            is_advised=not known.is_managed,
        )

    def unknown(self, run: Run) -> Iterator[str]:
        known: GarbageCollection | None = run.garbage_collection
        if known is None:
            yield "Time of the garbage collector: it was not watched."
        elif not known.is_whole:
            yield "Time of the garbage collector: the program has cleared gc.callbacks."


ASPECT = GarbageCollectionAspect()
