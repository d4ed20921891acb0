# SPDX-License-Identifier: Apache-2.0
"""Which of a run's tables an export has: a file has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.rank_alignment import offsets_ns_of, ranks_of
from pyinstrument_gpu.export.readings import metrics
from pyinstrument_gpu.export.spans import modules, spans
from pyinstrument_gpu.export.steps import steps
from pyinstrument_gpu.export.summary import summary
from pyinstrument_gpu.export.table import Part, Table
from pyinstrument_gpu.export.waits import syncs

OPTIONS: Mapping[str, Callable[[Sequence[Run]], Table]] = {
    "summary": lambda runs: summary,
    "steps": steps,
    "metrics": lambda runs: metrics,
    "syncs": lambda runs: syncs,
    "modules": lambda runs: modules,
}
"""The tables that are asked for by an option of this name; without any it is that of spans."""


def tables_of(
    runs: Sequence[Run], advance: Callable[[int], None], **asked: bool
) -> Iterator[tuple[Run, int, Iterator[Part]]]:
    """Each run with its rank and the rows of the table that is asked for. The tables of all runs
    have the same columns. To be read one after the other.

    Args:
        advance: called with a number of spans whenever so many more are done with.
        asked: by the names of `OPTIONS`.

    Raises:
        ExportError: more than one table is asked for; or there are several runs, the table has
            times, and one run does not know when it began.
    """
    names = [name for name in OPTIONS if asked.get(name)]
    if len(names) > 1:
        raise ExportError(f"{' and '.join(names)} are separate tables: export them one at a time")
    offsets_ns = [0] * len(runs) if names == ["summary"] else offsets_ns_of(runs)
    table = OPTIONS[names[0]](runs) if names else spans
    for run, rank, offset_ns in zip(runs, ranks_of(runs), offsets_ns, strict=True):
        parts = table(run, offset_ns)
        yield run, rank, _telling(parts, advance) if table is spans else parts
        advance(0 if table is spans else len(run.spans))


def _telling(parts: Iterator[Part], advance: Callable[[int], None]) -> Iterator[Part]:
    """Parts of spans; tells when each is done with."""
    for part in parts:
        yield part
        advance(len(part["path"].values))
