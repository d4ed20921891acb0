# SPDX-License-Identifier: Apache-2.0
"""The garbage collector as an aspect of a run: the row of the table, and what a report says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from examples.aspect.collector.data import NAME, Collector
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, duration, share


@dataclass(frozen=True)
class CollectorTimes:
    """What Python's garbage collector took.

    Attributes:
        count: how many collections there were.
        total_ns: how long they took together, those outside steps included.
        per_step_ns: the part of it that fell into steps, per step; None if no step ended.
        share: of the steps' time; None likewise.
        longest_ns: how long the longest took.
        longest_step: the step that it fell into; None outside steps.
    """

    count: int
    total_ns: int
    per_step_ns: float | None
    share: float | None
    longest_ns: int
    longest_step: int | None


class CollectorAspect(Aspect):
    """The time that Python's garbage collector takes."""

    name = NAME
    heading = "Garbage collector"
    section_type = CollectorTimes | None
    about = "what Python's garbage collector took."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {NAME: given.get(NAME)}

    def read(self, found: Found) -> dict[str, Any]:
        what = "what was noted of the garbage collector"
        return {NAME: found.document(NAME, what, lambda data: decode_object(data, NAME, Collector))}

    def section(self, run: Any) -> CollectorTimes | None:
        """The plain data, which JSON prints. None if nothing was watched or collected."""
        known, steps = run.collector, run.step_totals
        if known is None or not known.count:
            return None
        return CollectorTimes(
            known.count,
            known.total_ns,
            known.in_steps_ns / steps.count if steps.count else None,
            known.in_steps_ns / steps.duration.total_ns if steps.count else None,
            known.longest_ns,
            known.longest_step,
        )

    def parts(self, times: CollectorTimes, document: Any) -> Iterator[Part]:
        """What the terminal and the page show of it."""
        yield Sentence()
        yield Sentence("Python's garbage collector", "title")
        yield Sentence(f"{counted(times.count, 'collection')} took {duration(times.total_ns)}")
        if times.per_step_ns is not None and times.share is not None:
            yield Sentence(f"{duration(times.per_step_ns)} per step{share(times.share, 1)}")
        where = "outside steps" if times.longest_step is None else f"in step {times.longest_step}"
        yield Sentence(f"The longest took {duration(times.longest_ns)}, {where}")

    def unknown(self, run: Any) -> Iterable[str]:
        if run.collector is None:
            yield "Time of the garbage collector: it was not watched."


ASPECT = CollectorAspect()
