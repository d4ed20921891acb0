# SPDX-License-Identifier: Apache-2.0
"""Rows of a table by a key of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


def groups(keys: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """For each key, ascending, the rows where it stands, in their order."""
    order = np.argsort(keys, kind="stable")
    in_order = keys[order]
    starts = np.flatnonzero(in_order[1:] != in_order[:-1]) + 1
    bounds = [0, *starts.tolist(), len(keys)] if len(keys) else []
    for begin, end in pairwise(bounds):
        yield int(in_order[begin]), order[begin:end]
