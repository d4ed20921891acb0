# SPDX-License-Identifier: Apache-2.0
"""The garbage collector as an aspect of a run: what the table of aspects has a row of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from examples.aspect.collector.data import NAME, Collector
from examples.aspect.collector.section import CollectorTimes, collector_section, collector_times
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.parts.parts import Part


class CollectorAspect(Aspect):
    """The time that Python's garbage collector takes."""

    name = NAME
    heading = "Garbage collector"
    section_type = CollectorTimes | None
    about = "what Python's garbage collector took."

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        return {NAME: given.get(NAME)}

    def read(self, found: Found) -> dict[str, Any]:
        return {NAME: found.document(NAME, "what was noted of the garbage collector", _decoded)}

    def section(self, run: Any) -> CollectorTimes | None:
        return collector_times(run)

    def parts(self, section: CollectorTimes, document: Any) -> Iterable[Part]:
        return collector_section(section)

    def unknown(self, run: Any) -> Iterable[str]:
        if run.collector is None:
            yield "Time of the garbage collector: it was not watched."


def _decoded(data: bytes) -> tuple[Collector, int]:
    try:
        return msgspec.json.decode(data, type=Collector), 0
    except msgspec.MsgspecError as error:
        raise nonsense(NAME, str(error)) from error
