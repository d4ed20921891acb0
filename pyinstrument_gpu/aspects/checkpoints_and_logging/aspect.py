# SPDX-License-Identifier: Apache-2.0
"""Checkpoints and logging as causes of slow steps. They have no section of their own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.checkpoints_and_logging import CHECKPOINT_KIND, DOCUMENT, LOGGING_KIND
from pyinstrument_gpu.aspects.checkpoints_and_logging.data import CheckpointsAndLogging, OutputPlace
from pyinstrument_gpu.core.aspect import DocumentAspect
from pyinstrument_gpu.core.cause import Cause, Precedence
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.parts.words import printable, size

_LATER = "write checkpoints less often, or with torch.distributed.checkpoint.async_save"
_APART = "leave it a processor of its own, or write checkpoints less often"
_SELDOM = "log every N steps"


class CheckpointsAndLoggingAspect(DocumentAspect[Run, None]):
    """The checkpoints and logs that a program writes while it trains."""

    name = "checkpoints_and_logging"
    written_as = DOCUMENT
    document = CheckpointsAndLogging
    noted = "checkpoints and logging"

    def causes(self, run: Run) -> Iterator[Cause]:
        """Yield the causes. Of checkpoints in another thread, only the time of writing is known."""
        known: CheckpointsAndLogging | None = run.checkpoints_and_logging
        if known is None or known.not_watched:
            return
        notes = tuple(_what(run, place) for place in known.places)
        since = run.noted_causes.known(run.steps.closed)
        own, meanwhile, amounts = _calls(run, CHECKPOINT_KIND, len(notes))
        meanwhile["thread"] = -1
        yield Cause(
            name="checkpoint",
            words="checkpoints",
            remedy=_LATER,
            precedence=Precedence.ACT,
            intervals=own,
            amounts=amounts,
            known=since,
            notes=notes,
        )
        yield Cause(
            name="checkpoint_meanwhile",
            words="while another thread wrote a checkpoint",
            remedy=_APART,
            precedence=Precedence.HINDRANCE,
            intervals=meanwhile,
            known=since,
            notes=notes,
        )
        own, _, amounts = _calls(run, LOGGING_KIND, len(notes))
        yield Cause(
            name="logging",
            words="logging calls",
            remedy=_SELDOM,
            precedence=Precedence.ACT,
            intervals=own,
            amounts=amounts,
            known=since,
            notes=notes,
        )

    def unknown(self, run: Run) -> Iterator[str]:
        known: CheckpointsAndLogging | None = run.checkpoints_and_logging
        if known is not None and known.not_watched:
            calls = ", ".join(map(printable, known.not_watched))
            yield f"Time of checkpoints and logging calls: {calls} could not be watched."


def _calls(
    run: Run, kind: int, places: int
) -> tuple[NDArray[np.void], NDArray[np.void], NDArray[np.void]]:
    """Return the calls on threads that have steps, those on others, and the sums of short ones."""
    intervals, amounts = run.noted_causes.of_kind(kind)
    intervals["note"][intervals["note"] >= places] = -1
    is_own = np.isin(intervals["thread"], run.steps.closed["thread"])
    return intervals[is_own], intervals[~is_own], amounts


def _what(run: Run, place: OutputPlace) -> str:
    where = run.name_of_line(SourceLine(place.file, place.line, ""))
    size_text = "" if place.size_bytes is None else f", {size(place.size_bytes)}"
    return printable(f"{place.call} at {where}{size_text}")


ASPECT = CheckpointsAndLoggingAspect()
