# SPDX-License-Identifier: Apache-2.0
"""Arrays: their distinct values, their rows by a key, the durations of rows, and equality of what
holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

_Integer = TypeVar("_Integer", bound=np.integer[Any])


def distinct(values: NDArray[_Integer]) -> NDArray[_Integer]:
    """Return the distinct values, ascending. Sorts a copy."""
    # Unless numpy also counts them, it imports numpy.ma first (as of 2.3), which takes a twentieth
    # of the time of a short command.
    found: NDArray[_Integer] = np.unique(values, return_counts=True)[0]
    return found


def places_in(
    ordered: NDArray[np.integer[Any]], values: NDArray[np.integer[Any]]
) -> NDArray[np.int64]:
    """Return the place of each value in an ascending array of distinct ones; -1: not there."""
    if not len(ordered):
        return np.full(len(values), -1)
    place = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.where(ordered[place] == values, place, -1)


def groups(keys: NDArray[np.integer[Any]]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each key, ascending, with its positions, ascending too. Sorts the keys."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    return zip(found.tolist(), np.split(order, first[1:]), strict=False)  # [[]] where none is


def least_of(
    keys: NDArray[np.integer[Any]], values: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """Return for each key below `count` the least of its values; more than any if none."""
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, keys, values)
    return least


def durations_ns_of(
    rows: NDArray[np.void], prefix: Literal["", "host_", "device_"] = ""
) -> NDArray[np.int64]:
    """End minus begin of each row, by the columns whose names have this prefix."""
    begins_ns: NDArray[np.int64] = rows[f"{prefix}begin_ns"]
    ends_ns: NDArray[np.int64] = rows[f"{prefix}end_ns"]
    return ends_ns - begins_ns


@dataclass(frozen=True, eq=False)
class ArrayFields:
    """A data class that equals another one when all of its fields do, arrays included."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(map(np.array_equal, self._values(), other._values()))

    def __hash__(self) -> int:
        return hash(tuple(value for value in self._values() if not isinstance(value, np.ndarray)))

    def _values(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]
