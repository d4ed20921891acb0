# SPDX-License-Identifier: Apache-2.0
"""CPU contention as an aspect of a run: what steps waited for a processor, and for whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.contention import (
    CONTENTION,
    Contention,
    is_contended,
    step_waits_ns,
    waited_for_processor,
)
from pyinstrument_gpu.aspects.cpu_contention.data import (
    DOCUMENT,
    THROTTLED_KIND,
    WAIT_KIND,
    CpuContention,
)
from pyinstrument_gpu.aspects.cpu_contention.live import LiveContention
from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.cause import Cause, Precedence, amounts_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import capitalised, printable, small_percent

_SHOWN_SHARE = 0.01


class CpuContentionAspect(DocumentAspect[Run, Contention]):
    """The processor time that a program wanted and did not get."""

    name = "cpu_contention"
    written_as = DOCUMENT
    document = CpuContention
    noted = "processors"
    heading = CONTENTION
    live = LiveContention()
    section_type = Contention | None
    about = f"{CONTENTION}: how long steps waited for a processor, and for whom."

    def section(self, run: Run) -> Contention | None:
        return analysis.of(run).contention if run.step_totals.count else None

    def parts(self, found: Contention, document: ReportedRun) -> Iterator[Part]:
        """Yield the section; nothing where steps hardly waited."""
        if max(found.share or 0.0, found.thread_share or 0.0) < _SHOWN_SHARE:
            return
        yield Sentence()
        yield Sentence(CONTENTION, "title")
        if found.share is not None:
            waited = capitalised(waited_for_processor(found.share))
            yield Sentence(f"{waited} (read in {found.steps:,} of {document.step_count:,})")
        if found.thread_share is not None and found.thread is not None:
            yield Sentence(
                f"Of its threads, {printable(found.thread)} waited most: "
                f"{small_percent(found.thread_share, 1)} of the time"
            )
        pressure = ""
        if found.pressure is not None:
            pressure = f"some program was waiting {small_percent(found.pressure, 1)} of the time"
        clauses = [clause for clause in (found.cause, pressure) if clause]
        if clauses:
            yield Sentence(capitalised("; ".join(clauses)), "note")
        if found.is_large:
            yield Sentence(
                "Such waits fall on whatever the program is doing at the moment, so savings may be "
                "smaller by as much, and nothing is said of other numbers of workers"
            )

    def warnings(self, run: Run) -> Iterator[str]:
        found = analysis.of(run).contention
        if found is None or not found.is_large or not run.step_totals.count:
            return
        if found.share is None:
            who = printable(found.thread or "A thread")
            waited = waited_for_processor(found.thread_share or 0.0, who=who)
        else:
            waited = waited_for_processor(found.share)
        cause = f", as {found.cause}" if found.cause else ""
        yield f"{CONTENTION}: {waited}{cause}. Times are longer than without that."

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield the causes. What a CPU limit takes is a part of the wait."""
        waits, throttled = _waits(run), run.noted_causes.of_kind(THROTTLED_KIND)[1]
        limit_ns = dict(throttled[["step", "time_ns"]].tolist())
        if limit_ns:
            yield Cause(
                name="throttled",
                words="the CPU limit of its control group",
                remedy="raise the CPU limit of the container, or run fewer threads in it",
                precedence=Precedence.PAUSE,
                amounts=throttled,
                known=throttled["step"],
                saves=(1.0, 1.0),
                is_idle=True,
            )
        if not len(waits):
            return
        others_ns = [max(0, ns - limit_ns.get(step, 0)) for step, ns in waits.tolist()]
        yield Cause(
            name="processor_wait",
            words="waiting for a processor",
            remedy="keep other work off these cores, or run fewer threads and workers",
            precedence=Precedence.PAUSE,
            amounts=amounts_of(waits["step"], others_ns),
            known=waits["step"],
            is_idle=True,
            is_essential=True,
            # A warning says so of the whole run.
            is_advised=not is_contended(run),
        )

    def unknown(self, run: Run) -> Iterable[str]:
        found = analysis.of(run).contention
        if run.step_totals.count and (found is None or found.share is None):
            yield "Waits for a processor: the kernel did not tell how long threads waited."


def _waits(run: Run) -> NDArray[np.void]:
    """Return how long each step waited (`AMOUNT_DTYPE`), for those of which it is known: those that
    were chosen to be read, and long ones."""
    steps, long_ones = run.steps.closed, run.noted_causes.of_kind(WAIT_KIND)[1]
    waits_ns = step_waits_ns(run, steps)
    chosen = ~np.isnan(waits_ns) & ~np.isin(steps["index"], long_ones["step"])
    return np.concatenate([amounts_of(steps["index"][chosen], waits_ns[chosen]), long_ones])


ASPECT = CpuContentionAspect()
