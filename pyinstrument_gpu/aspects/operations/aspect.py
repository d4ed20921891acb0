# SPDX-License-Identifier: Apache-2.0
"""What torch.profiler has seen, as an aspect of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from pyinstrument_gpu.aspects.operations import section as sections
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.aspects.operations.file import decode_operations
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.steps import ProfiledSteps
from pyinstrument_gpu.parts.parts import Part


class OperationsAspect(Aspect):
    """The operations in the steps that were profiled."""

    name = "operations"
    section_type = sections.Operations | None
    about = "what torch's profiler has seen."
    in_preview = False

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {"operations": given.get("operations")}

    def profiled_steps(self, given: Mapping[str, Any]) -> Iterable[tuple[int, int]]:
        operations = given.get("operations")
        return () if operations is None else operations.profiled

    def read(self, found: Found) -> dict[str, Any]:
        operations = found.document(
            BlockType.OPERATIONS, "what was profiled", lambda data: (decode_operations(data), 0)
        )
        if operations is not None:
            found.notes += operations.notes
        known = ProfiledSteps(() if operations is None else operations.profiled)
        profiled = known.joined_by(found.profiled_steps).ranges
        if operations is None and profiled:
            found.notes.append(
                "what torch.profiler saw is missing; the steps that it slowed are counted apart"
            )
        if profiled:
            operations = replace(operations or Operations(), profiled=profiled)
        return {"operations": operations}

    def section(self, run: Run) -> sections.Operations | None:
        return sections.operations(run)

    def parts(self, operations: sections.Operations, document: Any) -> Iterable[Part]:
        return sections.operations_section(operations)

    def unknown(self, run: Run) -> Iterator[str]:
        if run.operations is None:
            yield "Operations: the run has no profile of steps (run --profile-steps 3)."
