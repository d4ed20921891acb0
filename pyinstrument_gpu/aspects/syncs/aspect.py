# SPDX-License-Identifier: Apache-2.0
"""Syncs as an aspect of a run. Its waits are the core's, as the analysis rests on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from pyinstrument_gpu.aspects.syncs import section as sections
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Part

_MOST_SITES = 20


class SyncsAspect(Aspect):
    """Where the program makes the host wait for a device."""

    name = "syncs"
    heading = "Waits for the device"
    section_type = sections.Syncs | None
    about = "where the host waits for a device."

    def section(self, run: Run) -> sections.Syncs | None:
        return sections.syncs(run)

    def parts(self, syncs: sections.Syncs, document: Any) -> Iterable[Part]:
        return sections.syncs_section(syncs, document.step_count)

    def verdict(self, syncs: sections.Syncs) -> str | None:
        return sections.preview_verdict(syncs) if syncs.is_preview else None

    def lines(self, run: Run) -> Iterator[tuple[str, SourceLine]]:
        for site in sections.listed_sites(run.syncs)[:_MOST_SITES]:
            for line in (site.program, site.library):
                if line is not None:
                    at = run.name_of_line(line)
                    yield f"{site.kind.label} at {at}, in {line.function}", line

    def unknown(self, run: Run) -> Iterator[str]:
        if not run.syncs.was_watched:
            # What was known of the watch may be in the part of the file that is missing.
            watched = (
                "syncs were not watched" if run.complete else "nothing of a watch is in the file"
            )
            yield f"Where the host waits for the device: {watched} (pig.watch_syncs())."
        elif run.syncs.is_as_if:
            unknown = "How long the host waits for a device, and all other times"
            yield f"{unknown}: the run was a preview."
