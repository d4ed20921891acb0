# SPDX-License-Identifier: Apache-2.0
"""The spans of a run, or its passes through modules, as a table: a row for each, in the order in
which the run has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.model.modules import ModulePass
from pyinstrument_gpu.model.run_data import RunData

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns")


@dataclass(frozen=True)
class SpanTable:
    """One of the two tables.

    Attributes:
        names: of its columns. They are those of the records, with names for the numbers of phases,
            paths, modules and kinds, and the names of threads and streams beside their numbers.
        text_numbers: the columns of text, each with that column of the records which has their
            numbers; -1 is for no text.
        of: the records of a run.
    """

    names: tuple[str, ...]
    text_numbers: dict[str, str]
    of: Callable[[RunData], NDArray[np.void]]

    def texts_of(self, run: RunData) -> dict[str, Sequence[str]]:
        """For each column of text what its numbers stand for."""
        texts = {
            "phase": run.names,
            "path": run.paths,
            "module": run.module_names,
            "kind": [kind.name.lower() for kind in ModulePass],
            "thread_name": [thread.name for thread in run.threads],
            "stream_name": [stream.name for stream in run.streams],
        }
        return {column: texts[column] for column in self.text_numbers}

    def columns(
        self, run: RunData, rows: slice, offset_ns: int
    ) -> Iterator[tuple[str, NDArray[Any]]]:
        """The name and the numbers of each column, of some rows; below 0 is missing. Times are on
        the axis that begins `offset_ns` before the run."""
        records = self.of(run)
        for column in self.names:
            if column == "device_ns":
                yield column, run.span_device_ns[rows]
                continue
            values = records[self.text_numbers.get(column, column)][rows]
            if column in _TIMES and offset_ns:
                values = np.where(values < 0, values, values + offset_ns)
            yield column, values


_NAMES_OF_NUMBERS = {"path": "path", "thread_name": "thread", "stream_name": "stream"}

SPANS = SpanTable(
    names=(
        *("phase", "path", "step", "depth", "thread", "thread_name"),
        *("device", "stream", "stream_name", *_TIMES, "device_ns", "blocked_ns", "flags"),
    ),
    text_numbers={"phase": "phase", **_NAMES_OF_NUMBERS},
    of=lambda run: run.spans,
)
"""Those of `SPAN_DTYPE`, and the exact stream time."""

MODULES = SpanTable(
    names=(
        *("module", "kind", "path", "step", "depth", "thread", "thread_name"),
        *("stream", "stream_name", *_TIMES),
    ),
    text_numbers={"module": "module", "kind": "kind", **_NAMES_OF_NUMBERS},
    of=lambda run: run.module_spans,
)
"""Those of `MODULE_SPAN_DTYPE`."""
