# SPDX-License-Identifier: Apache-2.0
"""Collective operations as an aspect of a run. What they say of a job is in the job's report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyinstrument_gpu.aspects.collectives.data import Collectives, known_collectives
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.cause import Cause, Precedence, intervals_of
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.run import Run


class CollectivesAspect(DocumentAspect[Run, None]):
    """Collective operations, by PyTorch's flight recorder."""

    name = "collectives"
    noted = "collective operations"
    block = BlockType.COLLECTIVE_GROUPS
    missing = Collectives()

    def decode(self, data: bytes, found: Found) -> Collectives:
        collectives = known_collectives(data, found.blocks, found.state)
        found.notes += collectives.notes
        return collectives

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield the thread of the steps' waits for other ranks, in calls that were hooked."""
        since_ns, waits = run.collectives.waits_since_ns, run.collectives.waits
        if since_ns < 0:
            return
        steps = run.steps.closed
        yield Cause(
            name="rank_wait",
            words="waiting for other ranks",
            remedy="see which rank is late: pyinstrument-gpu report with the files of all ranks",
            precedence=Precedence.WAIT,
            intervals=intervals_of(waits["begin_ns"], waits["end_ns"]),
            known=steps["index"][steps["begin_ns"] >= since_ns],
            is_advised=False,
        )

    def join_history(self, run: Run, earlier: Run) -> None:
        kept = earlier.collectives
        run.collectives = replace(run.collectives, events=kept.events, waits=kept.waits)


ASPECT = CollectivesAspect()
