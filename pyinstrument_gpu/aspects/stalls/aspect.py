# SPDX-License-Identifier: Apache-2.0
"""Stalls as an aspect of a run. What they say of its end is in what `why` prints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.stalls.data import Stall, decode_stalls
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times


class StallsAspect(DocumentAspect[Run, None]):
    """Times in which the program did nothing for far longer than its steps take."""

    name = noted = "stalls"
    block = BlockType.STALLS
    missing = ()

    def decode(self, data: bytes, found: Found) -> tuple[Stall, ...]:
        stalls = decode_stalls(data, found.tables.paths, len(found.tables.threads))
        return tuple(_with_device_events(stalls, found.spans))


def _with_device_events(stalls: Sequence[Stall], spans: NDArray[np.void]) -> list[Stall]:
    """The stalls, each with the newest end on a device that is known to lie before it was
    noticed."""
    ends_ns = spans["device_end_ns"][has_device_times(spans)] if stalls else np.empty(0, np.int64)
    known = []
    for stall in stalls:
        before_ns = ends_ns[ends_ns <= stall.noticed_ns]
        end_ns = int(before_ns.max()) if len(before_ns) else None
        known.append(replace(stall, device_event_ns=end_ns))
    return known


ASPECT = StallsAspect()
