# SPDX-License-Identifier: Apache-2.0
"""Spans summed by step, path and scope."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

PHASE_TIME_DTYPE = np.dtype(
    [
        ("step", "<i8"),
        ("path", "<u4"),
        ("scope", "u1"),
        ("count", "<i8"),
        ("host_ns", "<i8"),
        ("device_ns", "<i8"),
    ]
)
"""What one step spent in one path: the sum over its spans of that `scope`, `Scope.STEP` or
`Scope.OTHER_THREADS`. `path` indexes `RunUpdate.paths`. `device_ns` is -1 unless it is known of
every one of the spans."""

Rows = NDArray[np.void]
"""Sums that can be added to, by key. `timed` counts the spans whose device time is in
`device_ns`."""

_SUMS = ("count", "host_ns", "timed", "device_ns")
_ROW_DTYPE = np.dtype([(name, "<i8") for name in ("key", *_SUMS)])

# A key is step, path and scope in one number: sorting one column is faster than three.
_PATH_BITS = 20
_SCOPE_BITS = 2


def keys_of(
    steps: NDArray[Any], paths: NDArray[Any], scopes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return a number for each step (>= 0), path and scope, in their ascending order."""
    keys: NDArray[np.int64] = steps.astype(np.int64) << _PATH_BITS | paths.astype(np.int64)
    return keys << _SCOPE_BITS | scopes


def step_of(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    return keys >> (_PATH_BITS + _SCOPE_BITS)


def rows_of(keys: NDArray[np.int64], **sums: ArrayLike) -> Rows:
    """A row for each key; a sum that is not given is 0."""
    rows = np.zeros(len(keys), _ROW_DTYPE)
    rows["key"] = keys
    for name, values in sums.items():
        rows[name] = values
    return rows


def summed(*parts: Rows) -> Rows:
    """Return one row for each key, ascending."""
    rows = np.concatenate(parts)
    keys = rows["key"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    sums = rows_of(keys[begins])
    if len(begins):
        for name in _SUMS:
            sums[name] = np.add.reduceat(rows[name][order], begins)
    return sums


def phase_times(rows: Rows) -> NDArray[np.void]:
    times = np.empty(len(rows), PHASE_TIME_DTYPE)
    times["step"] = step_of(rows["key"])
    times["path"] = (rows["key"] >> _SCOPE_BITS) & ((1 << _PATH_BITS) - 1)
    times["scope"] = rows["key"] & ((1 << _SCOPE_BITS) - 1)
    times["count"], times["host_ns"] = rows["count"], rows["host_ns"]
    times["device_ns"] = np.where(rows["timed"] == rows["count"], rows["device_ns"], -1)
    return times
