# SPDX-License-Identifier: Apache-2.0
"""A table of a run, some rows at a time: what CSV and Parquet are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.ranges import slices_of


@dataclass(frozen=True)
class Column:
    """Some rows of a column.

    Attributes:
        values: integers or floats.
        texts: where it is one of text, what its values stand for; the same of all parts of a
            run.
        gaps: which values are missing; None where those below 0 are.
        decimals: how many a float has where it is text; None for all that it takes.
    """

    values: NDArray[Any]
    texts: Sequence[str] | None = None
    gaps: NDArray[np.bool_] | None = None
    decimals: int | None = None

    @property
    def is_missing(self) -> NDArray[np.bool_]:
        missing: NDArray[np.bool_] = self.values < 0 if self.gaps is None else self.gaps
        return missing

    def some(self, rows: slice) -> Column:
        gaps = None if self.gaps is None else self.gaps[rows]
        return replace(self, values=self.values[rows], gaps=gaps)


Part: TypeAlias = Mapping[str, Column]
"""Rows: the columns of a table by name, in their order."""

Table: TypeAlias = Callable[[Run, int], Iterator[Part]]
"""Of a run the rows, in parts of the same columns; at least one, without rows if there are none.
Times are on the axis that begins so many ns before the run."""


def on_axis(times_ns: NDArray[np.int64], offset_ns: int) -> NDArray[np.int64]:
    """Times of a run on the axis; what is missing stays so."""
    return np.where(times_ns < 0, times_ns, times_ns + offset_ns) if offset_ns else times_ns


def slices(rows: int) -> Iterator[slice]:
    """So many rows in parts; at least one."""
    return slices_of(max(1, rows), _PART_ROWS)


_PART_ROWS = 1 << 17
