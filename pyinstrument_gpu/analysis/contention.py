# SPDX-License-Identifier: Apache-2.0
"""CPU contention: how much of their time steps waited for a processor, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.arrays import durations_ns_of, places_in
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name
from pyinstrument_gpu.core.steps import StepTotals
from pyinstrument_gpu.parts.words import small_percent

if TYPE_CHECKING:  # what runs hold of aspects is found by their table
    from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention

CONTENTION = "CPU contention"
"""The term for a machine that others keep busy: all that speaks of one has it from here, and what
was waited from `waited_for_processor`."""
READING = "step/processor_wait_ns"
"""Of each step that was read."""
LARGE_SHARE = 0.1
"""From this share of the time on, what a change would save of it is known roughly only."""
MANY_OTHERS = 0.1
"""From this share of the processors on, what others use of them matters."""


MANY_STARTED = 0.25
"""The same of processes that the program started, such as the workers of its loader."""


@dataclass(frozen=True, kw_only=True)
class Contention:
    """The processor time that a run wanted and did not get. None is unknown.

    Attributes:
        is_large: whether so much of the time was waiting that savings are known roughly only. What
            threads beside that of the steps waited counts only where that of the steps is unknown.
        step_ns: what a step takes.
        steps: of so many steps it is known how long their thread waited for a processor.
        share: for which share of the time of these steps it did.
        thread, thread_share: which thread waited longest, and for which share of the elapsed time.
        processors: those that the process may use.
        others: how many of them other processes used, on average.
        own: how many of them it used itself, with the processes that it started, on average.
        started: how many of them these used.
        throttled_share: for which share of the elapsed time a CPU limit stopped the process, summed
            over processors.
        pressure: for which share of it some program of the machine waited for a processor.
    """

    is_large: bool
    step_ns: float
    steps: int
    share: float | None
    thread: str | None = None
    thread_share: float | None = None
    processors: int | None = None
    others: float | None = None
    throttled_share: float | None = None
    pressure: float | None = None
    own: float | None = None
    started: float | None = None

    @property
    def has_many_others(self) -> bool:
        others, processors = self.others, self.processors
        return others is not None and others > MANY_OTHERS * (processors or 1)

    @property
    def is_by_started(self) -> bool:
        """True if processes that it has started use much of the processors, and most of what it
        uses."""
        started = self.started or 0.0
        return started > max(MANY_STARTED * (self.processors or 1), (self.own or 0.0) / 2)

    @property
    def is_throttled(self) -> bool:
        return (self.throttled_share or 0.0) >= LARGE_SHARE / 2

    @property
    def is_own(self) -> bool:
        """True if it is the process, with those that it started, that takes its own processors."""
        return self.others is not None and not self.has_many_others and not self.is_throttled

    @property
    def cause(self) -> str:
        """The thing it waited for, in a clause; empty if that is unknown."""
        return ", and ".join(self._causes())

    def _causes(self) -> Iterator[str]:
        if self.is_throttled:
            yield "the CPU limit of its container or control group throttled it"
        if self.has_many_others:
            yield f"other processes used {self.others:.1f} of {_processors(self.processors)}"
        if self.is_by_started:
            used = f"{self.started:.1f} of {_processors(self.processors)}"
            yield f"processes that it started used {used}"
        elif self.is_own:
            yield (
                f"it has more threads and processes at work than the {_processors(self.processors)}"
                " that it may use"
            )


def _processors(count: int | None) -> str:
    return f"{count} processor" + ("" if count == 1 else "s")


def waited_for_processor(*shares: float, who: str = "steps") -> str:
    """Return for which share of the time somebody waited for a processor, on each side, in words:
    "steps waited 12% of the time for a processor"."""
    of_time = " and ".join(small_percent(share, 1) for share in shares)
    return f"{who} waited {of_time} of the time for a processor"


def contention(run: Run, totals: StepTotals | None = None) -> Contention | None:
    """Return the contention; None if unknown. `totals` are of the steps meant, by default all."""
    steps = run.steps.closed
    waits_ns = step_waits_ns(run, steps)
    is_known = ~np.isnan(waits_ns)
    time_ns = int(durations_ns_of(steps)[is_known].sum())
    found = run.cpu_contention
    if found is None and not is_known.any():
        return None
    share = float(waits_ns[is_known].sum()) / time_ns if time_ns else None
    of_recording = _of_recording(found)
    waiting = of_recording.get("thread_share") if share is None else share
    return Contention(
        is_large=(waiting or 0.0) >= LARGE_SHARE,
        step_ns=(totals or run.step_totals).duration.mean_ns,
        steps=int(is_known.sum()),
        share=share,
        **of_recording,
    )


def is_contended(run: Run) -> bool:
    """Return whether steps waited for processors so long that savings are known roughly only. For
    what an analysis is made of; others ask the analysis."""
    found = contention(run)
    return found is not None and found.is_large


def _of_recording(found: CpuContention | None) -> dict[str, Any]:
    if found is None:
        return {}
    return {
        "thread": found.thread,
        "thread_share": found.share(found.thread_wait_ns),
        "processors": found.processors,
        "others": found.others,
        "own": found.share(found.own_ns),
        "started": found.share(found.started_ns),
        "throttled_share": found.share(found.throttled_ns),
        "pressure": found.share(found.pressure_ns),
    }


def step_waits_ns(run: Run, steps: NDArray[np.void]) -> NDArray[np.float64]:
    """Return how long the thread of each of these steps waited for a processor in it, which is at
    most all of it; NaN unknown."""
    waits_ns = np.full(len(steps), np.nan)
    readings = dict(metrics_by_name(run.metric_names, run.metrics)).get(READING)
    if readings is not None:
        places = places_in(steps["index"], readings["step"])
        waits_ns[places[places >= 0]] = readings["value"][places >= 0]
    known_ns: NDArray[np.float64] = np.minimum(waits_ns, durations_ns_of(steps))
    return known_ns
