# SPDX-License-Identifier: Apache-2.0
"""Memory as an aspect of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.aspects.memory import section as sections
from pyinstrument_gpu.aspects.memory.file import decode_memory
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.parts import Curves, Part


class MemoryAspect(Aspect):
    """Memory by phase and over steps, and when there was none left."""

    name = "memory"
    section_type = sections.MemoryUse | None
    about = "by phase, and whether it grows."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"memory": given.get("memory")}

    def read(self, found: Found) -> dict[str, Any]:
        memory = found.document(
            BlockType.MEMORY,
            "what was noted of memory",
            lambda data: decode_memory(data, found.tables.paths, found.numbering, found.anchor),
        )
        if memory is not None:
            found.notes += memory.notes
        return {"memory": memory}

    def section(self, run: Run) -> sections.MemoryUse | None:
        return sections.memory(run)

    def parts(self, section: sections.MemoryUse, document: Any) -> Iterable[Part]:
        return sections.memory_section(section)

    def first_parts(self, section: sections.MemoryUse) -> Iterable[Part]:
        return sections.out_of_memory(section)

    def failures(self, run: Run) -> Iterable[Finding]:
        return sections.failures(run)

    def curves(self, run: Run) -> Iterable[Curves]:
        return sections.memory_curves(run)

    def unknown(self, run: Run) -> Iterator[str]:
        if run.memory is None:
            yield "Memory: the run has no reading of it."
