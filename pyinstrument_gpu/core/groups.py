# SPDX-License-Identifier: Apache-2.0
"""Rows grouped by a key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray


def groups(keys: NDArray[np.integer[Any]]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each key, ascending, with the positions where it stands, ascending too. Sorts the keys."""
    order = np.argsort(keys, kind="stable")
    found, first = np.unique(keys[order], return_index=True)
    return zip(found.tolist(), np.split(order, first[1:]), strict=False)  # [[]] where none is


def least_of(
    keys: NDArray[np.integer[Any]], values: NDArray[np.int64], count: int
) -> NDArray[np.int64]:
    """For each key below `count` the least of its values; more than any where there is none."""
    least = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(least, keys, values)
    return least
