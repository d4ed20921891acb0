# SPDX-License-Identifier: Apache-2.0
"""Context switches as an aspect of a run: what its file has of them, and what a report says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from pyinstrument_gpu.core.aspect import DocumentAspect, ReportedRun
from pyinstrument_gpu.core.file.json_document import Count
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted


class Switches(Struct, frozen=True):
    """How often the kernel gave the processors of the program's threads to others.

    Attributes:
        voluntary: because the thread had to wait for something.
        involuntary: although it had more to do.
    """

    voluntary: Count
    involuntary: Count


class SwitchesAspect(DocumentAspect[Any, Switches]):
    """How often the kernel takes the program's threads from their processors."""

    name = "switches"
    document = Switches
    noted = "context switches"
    heading = "Context switches"
    section_type = Switches | None
    about = "how often the program's threads lost their processor."

    def section(self, run: Any) -> Switches | None:
        """The plain data, which JSON prints."""
        known: Switches | None = run.switches
        return known

    def parts(self, switches: Switches, document: ReportedRun) -> Iterator[Part]:
        """What the terminal and the page show of it."""
        yield Sentence()
        yield Sentence("Context switches", "title")
        yield Sentence(f"The program waited {counted(switches.voluntary, 'time')}")
        yield Sentence(f"It was interrupted {counted(switches.involuntary, 'time')}")

    def unknown(self, run: Any) -> Iterable[str]:
        if run.switches is None:
            yield "Context switches: nobody counted them."


ASPECT = SwitchesAspect()
