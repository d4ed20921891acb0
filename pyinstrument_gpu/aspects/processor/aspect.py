# SPDX-License-Identifier: Apache-2.0
"""CPU contention as an aspect of a run: what steps waited for a processor, and for whom."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.contention import LARGE_SHARE, Contention
from pyinstrument_gpu.aspects.processor.data import NAME, Processor
from pyinstrument_gpu.aspects.processor.live import LiveContention
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import capitalised, duration, printable, small_percent

_SHOWN_SHARE = 0.01


class ProcessorAspect(Aspect):
    """What a program wanted of the processors and did not get."""

    name = NAME
    heading = "CPU contention"
    live = LiveContention()
    section_type = Contention | None
    about = "CPU contention: how long steps waited for a processor, and for whom."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {NAME: given.get(NAME)}

    def read(self, found: Found) -> dict[str, Any]:
        what = "what was noted of processors"
        return {NAME: found.document(NAME, what, lambda data: decode_object(data, NAME, Processor))}

    def section(self, run: Run) -> Contention | None:
        return analysis.of(run).contention if run.step_totals.count else None

    def parts(self, found: Contention, document: Any) -> Iterator[Part]:
        """Nothing where steps hardly waited."""
        if max(found.share or 0.0, found.thread_share or 0.0) < _SHOWN_SHARE:
            return
        yield Sentence()
        yield Sentence("CPU contention", "title")
        if found.share is not None:
            yield Sentence(
                f"Steps waited {small_percent(found.share, 1)} of their time for a processor (read "
                f"in {found.steps:,} of {document.step_count:,})"
            )
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
                "Such waits fall on whatever the program does at the moment. So shares of the step "
                "say little of the program, and nothing is advised from them"
            )

    def verdict(self, found: Contention) -> str | None:
        if not found.is_large:
            return None
        if found.share is not None and found.share >= LARGE_SHARE:
            waits = f"of which it waits {small_percent(found.share, 1)} for a processor"
        else:
            waited = small_percent(found.thread_share or 0.0, 1)
            thread = printable(found.thread or "a thread")
            waits = f"and {thread} waits {waited} of the time for a processor"
        cause = f": {found.cause}" if found.cause else ""
        again = "when the machine is idle" if found.has_many_others else "with more processors"
        return (
            f"A step takes {duration(found.step_ns)}, {waits}{cause}; what a change could save "
            f"can't be told from that, so record again {again}."
        )

    def unknown(self, run: Run) -> Iterable[str]:
        found = analysis.of(run).contention
        if run.step_totals.count and (found is None or found.share is None):
            yield "Waits for a processor: the kernel did not tell how long threads waited."


ASPECT = ProcessorAspect()
