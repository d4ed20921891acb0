# SPDX-License-Identifier: Apache-2.0
"""What a report says of the garbage collector: first as plain data, then in sentences."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, duration, share


@dataclass(frozen=True)
class CollectorTimes:
    """What Python's garbage collector took.

    Attributes:
        count: how many collections there were.
        total_ns: how long they took together, outside steps as well.
        per_step_ns: of the part that fell into steps; None if no step ended.
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


def collector_times(run: Any) -> CollectorTimes | None:
    """What the run knows of it; None if it was not watched, or collected nothing."""
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


def collector_section(times: CollectorTimes) -> Iterator[Part]:
    """The parts that the terminal, the page and `watch` show."""
    yield Sentence()
    yield Sentence("Python's garbage collector", "title")
    yield Sentence(f"{counted(times.count, 'collection')} took {duration(times.total_ns)}")
    if times.per_step_ns is not None and times.share is not None:
        yield Sentence(f"{duration(times.per_step_ns)} per step{share(times.share, 1)}")
    where = "outside steps" if times.longest_step is None else f"in step {times.longest_step}"
    yield Sentence(f"The longest took {duration(times.longest_ns)}, {where}")
