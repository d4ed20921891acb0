# SPDX-License-Identifier: Apache-2.0
"""The syncs of a run."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Blocks, BlockType, nonsense, true_prefix
from pyinstrument_gpu.core.file.cursor import Cursor
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import NONE, SYNC_ITEM, columns
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.steps import StepNumbering, is_behind_its_step
from pyinstrument_gpu.core.record import SourceLine
from pyinstrument_gpu.core.sync_kind import ALLOWED, SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, SyncTotals, totals_of

_MOST_DIGITS = 20  # of a line; int() refuses thousands of them
_SITE = struct.Struct("<II")
_STATISTICS = struct.Struct("<QQII")
_INTERVAL = struct.Struct("<qq")
_ROW = struct.Struct("<IIQQQQ")
_AS_IF = 1
_NOTHING_PLACED = 2


def known_syncs(
    blocks: Blocks,
    numbering: StepNumbering,
    steps: NDArray[np.void],
    paths: int,
    threads: int,
    state: State,
) -> Syncs:
    """The waits up to the first that can't be true, and the sums over all."""
    statistics = blocks.document(BlockType.SYNC_STATISTICS, _decode_statistics)
    if statistics is None:
        return Syncs()
    sites = blocks.texts(BlockType.SYNC_SITES, _decode_sites)
    log = blocks.records(BlockType.SYNCS, SYNC_ITEM)
    items = log.items
    good = true_prefix(
        (items["site"] < len(sites))
        & ((items["path"] < paths) | (items["path"] == NONE))
        & (items["thread"] < threads)
        & (items["begin_ns"] >= 0)
        & (items["begin_ns"] < TIME_LIMIT_NS)
        & (items["duration_ns"] >= -1)
        & (items["duration_ns"] < TIME_LIMIT_NS)
    )
    items = items[:good]
    path = np.where(items["path"] == NONE, -1, items["path"].astype(np.int64))
    events = columns(items, SYNC_DTYPE, path=path, step=numbering.indices(items["step"]))
    events["step"][is_behind_its_step(steps, events["step"], events["begin_ns"])] = -1
    newer = totals_of(events[max(0, statistics.events - log.first) :], len(sites))
    counted = [
        replace(site, totals=statistics.totals.get(number, SyncTotals()) + newer[number])
        for number, site in enumerate(sites)
    ]
    # A watch that was still on lasts as long as the run is known.
    watched = tuple((b, state.now_ns if e < 0 else e) for b, e in statistics.watched_ns)
    missing = statistics.dropped + log.first + max(0, statistics.events - log.first - good)
    flags = statistics.flags
    is_as_if, is_placed = bool(flags & _AS_IF), not flags & _NOTHING_PLACED
    return Syncs(tuple(counted), events, watched, is_as_if, is_placed, missing)


def _decode_sites(payload: memoryview) -> list[SyncSite]:
    return Cursor(payload, "SYNC_SITES").all(_site)


def _site(cursor: Cursor) -> SyncSite:
    line, kind = cursor.numbers(_SITE)
    # The path of a file may have been cut inside a character.
    file, text = cursor.text("replace"), cursor.text("replace")
    function, *library = text.split("\0", 3)
    known = SyncKind(min(kind & ~ALLOWED, SyncKind.OTHER))
    site = SyncSite(file, line, function, known, bool(kind & ALLOWED))
    if len(library) == 3 and len(library[0]) < _MOST_DIGITS and library[0].isdecimal():
        inner = SourceLine(file=library[2], line=int(library[0]), function=library[1])
        return replace(site, library=inner)
    return site


class _Statistics(NamedTuple):
    events: int
    dropped: int
    flags: int
    watched_ns: tuple[tuple[int, int], ...]
    totals: dict[int, SyncTotals]


def _decode_statistics(data: bytes) -> _Statistics:
    cursor = Cursor(data, "SYNC_STATISTICS")
    events, dropped, intervals, flags = cursor.numbers(_STATISTICS)
    watched = tuple(cursor.numbers(_INTERVAL) for _ in range(intervals))
    totals = {}
    while cursor:
        site, _, *sums = cursor.numbers(_ROW)
        totals[site] = SyncTotals(*sums)
    if any(one.priced > one.count for one in totals.values()):
        raise nonsense("SYNC_STATISTICS", "more waits have a price than there are")
    return _Statistics(events, dropped, flags, watched, totals)
