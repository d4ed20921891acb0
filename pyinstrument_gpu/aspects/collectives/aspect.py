# SPDX-License-Identifier: Apache-2.0
"""Collective operations as an aspect of a run. What they say of a job is in the job's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.aspects.collectives.file import encode_collective_groups, known_collectives
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.items import COLLECTIVE_ITEM, COLLECTIVE_P2P, columns
from pyinstrument_gpu.core.file.run_writer import RunWriter
from pyinstrument_gpu.core.run import Run


class CollectivesAspect(Aspect):
    """Collective operations, by PyTorch's flight recorder."""

    name = "collectives"

    def attributes(self, given: Mapping[str, Any]) -> dict[str, Any]:
        known = given.get("collectives")
        return {"collectives": Collectives() if known is None else known}

    def read(self, found: Found) -> dict[str, Any]:
        log = found.document(
            BlockType.COLLECTIVE_GROUPS,
            "what was noted of collective operations",
            lambda data: known_collectives(data, found.blocks, found.state),
        )
        if log is None:
            return {}
        found.notes += log.notes
        return {"collectives": log.collectives}

    def write(self, run: Run, writer: RunWriter) -> None:
        if not (run.collectives.was_read or run.collectives.groups):
            return
        events = run.collectives.events
        flags = np.where(events["is_p2p"], COLLECTIVE_P2P, 0)
        items = columns(events, COLLECTIVE_ITEM, flags=flags)
        writer.append_records(BlockType.COLLECTIVES, items)
        document = encode_collective_groups(run.collectives)
        writer.write_document(BlockType.COLLECTIVE_GROUPS, document)

    def join_history(self, run: Run, earlier: Run) -> None:
        run.collectives = replace(run.collectives, events=earlier.collectives.events)
