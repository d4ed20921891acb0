# SPDX-License-Identifier: Apache-2.0
"""The blocks of a run file that hold syncs."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from pyinstrument_gpu.errors import RunFileDamagedError
from pyinstrument_gpu.model.sync_kind import ALLOWED, SyncKind
from pyinstrument_gpu.model.syncs import SyncSite, SyncTotals

SYNC_ITEM = np.dtype(
    [
        ("begin_ns", "<i8"),
        ("duration_ns", "<i8"),
        ("bytes", "<u8"),
        ("site", "<u4"),
        ("path", "<u4"),
        ("step", "<u4"),
        ("thread", "<u4"),
    ]
)
"""A wait as it stands in a run file."""

_SITE = struct.Struct("<II")
_TEXT = struct.Struct("<H")
_STATISTICS = struct.Struct("<QQII")
_INTERVAL = struct.Struct("<qq")
_ROW = struct.Struct("<IIQQQQ")
_AS_IF = 1


class SyncStatistics(NamedTuple):
    """The SYNC_STATISTICS document."""

    events: int
    dropped: int
    is_as_if: bool
    watched_ns: tuple[tuple[int, int], ...]
    totals: dict[int, SyncTotals]


def decode_sites(payload: memoryview) -> list[SyncSite]:
    sites = []
    offset = 0
    while offset < len(payload):
        line, kind = _unpack(_SITE, payload, offset)
        offset += _SITE.size
        file, offset = _decode_text(payload, offset)
        function, offset = _decode_text(payload, offset)
        known = SyncKind(min(kind & ~ALLOWED, SyncKind.OTHER))
        sites.append(SyncSite(file, line, function, known, bool(kind & ALLOWED)))
    return sites


def decode_statistics(data: bytes) -> SyncStatistics:
    events, dropped, intervals, flags = _unpack(_STATISTICS, data, 0)
    offset = _STATISTICS.size
    watched = []
    for _ in range(intervals):
        watched.append(_unpack(_INTERVAL, data, offset))
        offset += _INTERVAL.size
    totals = {}
    while offset < len(data):
        site, _, *sums = _unpack(_ROW, data, offset)
        totals[site] = SyncTotals(*sums)
        offset += _ROW.size
    if any(totals[site].priced > totals[site].count for site in totals):
        raise _damaged("more waits have a price than there are")
    return SyncStatistics(events, dropped, bool(flags & _AS_IF), tuple(watched), totals)


def _decode_text(payload: memoryview, offset: int) -> tuple[str, int]:
    (length,) = _unpack(_TEXT, payload, offset)
    offset += _TEXT.size
    if offset + length > len(payload):
        raise _damaged("it ends in the middle of a name")
    return str(payload[offset : offset + length], "utf-8", "replace"), offset + length


def _unpack(layout: struct.Struct, data: bytes | memoryview, offset: int) -> Any:
    if offset + layout.size > len(data):
        raise _damaged("it ends in the middle of an item")
    return layout.unpack_from(data, offset)


def _damaged(reason: str) -> RunFileDamagedError:
    return RunFileDamagedError(f"the syncs of the run file make no sense: {reason}")
