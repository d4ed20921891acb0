# SPDX-License-Identifier: Apache-2.0
"""Context switches as an aspect of a run: the row of the table, and what a report says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from examples.aspect.switches.data import NAME, Switches
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.json_document import decode_object
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted


@dataclass(frozen=True)
class SwitchCounts:
    """How often the program's threads lost their processor.

    Attributes:
        voluntary: because they had to wait.
        involuntary: although they had more to do.
        per_step: of these, per step; None if no step ended.
    """

    voluntary: int
    involuntary: int
    per_step: float | None


class SwitchesAspect(Aspect):
    """How often the kernel takes the program's threads from their processors."""

    name = NAME
    heading = "Context switches"
    section_type = SwitchCounts | None
    about = "how often the program's threads lost their processor."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {NAME: given.get(NAME)}

    def read(self, found: Found) -> dict[str, Any]:
        what = "what was noted of context switches"
        return {NAME: found.document(NAME, what, lambda data: decode_object(data, NAME, Switches))}

    def section(self, run: Any) -> SwitchCounts | None:
        """The plain data, which JSON prints. None if nobody asked for them."""
        known, steps = run.switches, run.step_totals.count
        if known is None:
            return None
        per_step = known.involuntary / steps if steps else None
        return SwitchCounts(known.voluntary, known.involuntary, per_step)

    def parts(self, counts: SwitchCounts, document: Any) -> Iterator[Part]:
        """What the terminal and the page show of it."""
        yield Sentence()
        yield Sentence("Context switches", "title")
        yield Sentence(f"The program waited {counted(counts.voluntary, 'time')}")
        per_step = "" if counts.per_step is None else f", {counts.per_step:.3g} per step"
        yield Sentence(f"It was interrupted {counted(counts.involuntary, 'time')}{per_step}")

    def unknown(self, run: Any) -> Iterable[str]:
        if run.switches is None:
            yield "Context switches: nobody counted them."


ASPECT = SwitchesAspect()
