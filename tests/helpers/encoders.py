# SPDX-License-Identifier: Apache-2.0
"""The payloads of blocks and documents as bytes, from what the package reads of them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, fields
from typing import Any

import numpy as np
from msgspec import to_builtins

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.core.file import MAGIC, cursor, framing, names
from pyinstrument_gpu.core.file import statistics as statistics_file
from pyinstrument_gpu.core.file import syncs as syncs_file
from pyinstrument_gpu.core.file.framing import (
    MAJOR_VERSION,
    MINOR_VERSION,
    SLOT_BYTES,
    SLOTS_OFFSET,
)
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.file.statistics import StatisticsDocument
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.statistics import Statistic
from pyinstrument_gpu.core.steps import StepTotals
from pyinstrument_gpu.core.sync_kind import ALLOWED
from pyinstrument_gpu.core.syncs import Syncs, SyncSite


def pack_file_header(run_id: int) -> bytes:
    """The bytes before the first slot."""
    fields = (MAGIC, MAJOR_VERSION, MINOR_VERSION, SLOT_BYTES, SLOTS_OFFSET, run_id)
    crc = zlib.crc32(framing._FILE_HEADER.pack(*fields, 0)[: framing._FILE_HEADER_CHECKED_BYTES])
    return framing._FILE_HEADER.pack(*fields, crc).ljust(SLOTS_OFFSET, b"\0")


def pack_block(
    block_type: int, run_id: int, slot: int, sequence: int, first: int, payload: bytes
) -> bytes:
    """One block, as it stands at the start of its slot."""
    fields = (framing._BLOCK_MAGIC, block_type, 0, run_id, slot, len(payload), sequence, first)
    checked = framing._BLOCK_HEADER.pack(*fields, 0, 0)[: framing._BLOCK_HEADER_CHECKED_BYTES]
    crc = zlib.crc32(checked, zlib.crc32(payload))
    header_crc = zlib.crc32(
        framing._BLOCK_HEADER.pack(*fields, crc, 0)[: framing._BLOCK_HEADER_SUMMED_BYTES]
    )
    return framing._BLOCK_HEADER.pack(*fields, crc, header_crc) + payload


def encode_text(text: str) -> bytes:
    """A text behind its length, as `Cursor.text` reads it."""
    data = text.encode("utf-8", "surrogatepass")
    return cursor._TEXT_BYTES.pack(len(data)) + data


def encode_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def encode_thread(thread: Thread) -> bytes:
    return names._NATIVE_ID.pack(thread.native_id) + encode_text(thread.name)


def encode_state(state: State) -> bytes:
    return encode_json(to_builtins(state))


def encode_stalls(stalls: Sequence[Stall], paths: Sequence[str]) -> bytes:
    """The document of these stalls, without the last event on a device, which a reader finds."""
    return encode_json(
        {
            "stalls": [
                {
                    **to_builtins(stall),
                    "paths": [[thread, paths.index(path)] for thread, path in stall.paths],
                    "answer": {"stacks": stall.stacks, "groups": to_builtins(stall.groups)},
                }
                for stall in stalls
            ]
        }
    )


def encode_collective_groups(collectives: Collectives) -> bytes:
    return encode_json(
        {
            "was_read": collectives.was_read,
            "missed": collectives.missed,
            "groups": [asdict(group) for group in collectives.groups],
            "operations": collectives.operations,
            "waits_since_ns": collectives.waits_since_ns,
        }
    )


def encode_statistics(document: StatisticsDocument) -> bytes:
    chunks = [
        statistics_file._WATERMARKS.pack(document.spans, document.steps, document.device_times),
        _packed_totals(document.step_totals),
        _packed_totals(document.profiled_totals),
    ]
    for (path, scope), phase in document.phases.items():
        statistics = [getattr(phase, name) for name in statistics_file._STATISTICS_OF_A_PHASE]
        mask = sum(1 << bit for bit, one in enumerate(statistics) if one is not None)
        chunks.append(statistics_file._ROW.pack(path, scope, mask, 0))
        chunks += [_packed(one) for one in statistics if one is not None]
    return b"".join(chunks)


def _packed_totals(totals: StepTotals) -> bytes:
    *sums, duration = (getattr(totals, one.name) for one in fields(totals))
    return statistics_file._STEP_SUMS.pack(*sums) + _packed(duration)


def _packed(statistic: Statistic) -> bytes:
    squares_high, squares_low = divmod(statistic.sum_of_squares, 1 << 64)
    buckets = np.stack([statistic.bucket_indices, statistic.bucket_counts], axis=1).astype("<u8")
    head = statistics_file._STATISTIC.pack(
        *(statistic.count, statistic.total_ns, squares_low, squares_high),
        *(statistic.min_ns, statistic.max_ns, len(buckets)),
    )
    return head + buckets.tobytes()


def encode_sync_site(site: SyncSite) -> bytes:
    function, inner = site.function, site.library
    if inner is not None:
        function = "\0".join((function, str(inner.line), inner.function, inner.file))
    kind = site.kind | (ALLOWED if site.is_allowed else 0)
    return syncs_file._SITE.pack(site.line, kind) + encode_text(site.file) + encode_text(function)


def encode_sync_statistics(syncs: Syncs) -> bytes:
    flags = syncs_file._AS_IF if syncs.is_as_if else 0
    flags |= 0 if syncs.is_placed else syncs_file._NOTHING_PLACED
    counts = len(syncs.events), syncs.dropped, len(syncs.watched_ns)
    head = syncs_file._STATISTICS.pack(*counts, flags)
    rows = [
        syncs_file._ROW.pack(number, 0, *astuple(site.totals))
        for number, site in enumerate(syncs.sites)
        if site.totals.count
    ]
    return b"".join(
        [head, *(syncs_file._INTERVAL.pack(*interval) for interval in syncs.watched_ns), *rows]
    )
