# SPDX-License-Identifier: Apache-2.0
"""What the blocks of a run file hold, as bytes: the plain twin of what the native recorder writes.

See docs/run-file.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from typing import Any

import numpy as np

from pyinstrument_gpu.format.state import State
from pyinstrument_gpu.format.statistics import StatisticsDocument
from pyinstrument_gpu.model.collectives import Collectives
from pyinstrument_gpu.model.stall import GroupProgress, Stall
from pyinstrument_gpu.model.statistic import Statistic
from pyinstrument_gpu.model.step_totals import StepTotals
from pyinstrument_gpu.model.sync_kind import ALLOWED
from pyinstrument_gpu.model.syncs import Syncs, SyncSite
from pyinstrument_gpu.model.thread import Thread


def encode_name(name: str) -> bytes:
    data = name.encode("utf-8", "surrogatepass")
    return struct.pack("<H", len(data)) + data


def encode_thread(thread: Thread) -> bytes:
    return struct.pack("<Q", thread.native_id) + encode_name(thread.name)


def encode_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def encode_state(state: State) -> bytes:
    device = state.device
    return encode_json(
        {
            "now_ns": state.now_ns,
            "final": state.final,
            "anchor": dict(state.anchor),
            "spans": state.spans,
            "steps": state.steps,
            "device_times": state.device_times,
            "step_drops": state.step_drops,
            "metrics": state.metrics,
            "collectives": state.collectives,
            "dropped": dict(state.dropped),
            "harvester_cpu_ns": state.harvester_cpu_ns,
            "phases_recorded": state.phases_recorded,
            "open_step": None if state.open_step is None else state.open_step._asdict(),
            "open": state.open_phases,
            "device": None
            if device is None
            else {
                "every": device.timing.every,
                "records": device.timing.records,
                "record_ns": device.timing.record_ns,
                "pending": device.pending,
            },
            "error": state.error,
        }
    )


def encode_statistics(document: StatisticsDocument) -> bytes:
    chunks = [
        struct.pack("<QQQ", document.spans, document.steps, document.device_times),
        _encode_step_totals(document.step_totals),
        _encode_step_totals(document.profiled_totals),
    ]
    for (path, scope), phase in document.phases.items():
        statistics = (phase.host, phase.self_host, phase.device, phase.blocked)
        mask = sum(1 << bit for bit, one in enumerate(statistics) if one is not None)
        chunks.append(struct.pack("<IIII", path, scope, mask, 0))
        chunks += [_encode_statistic(one) for one in statistics if one is not None]
    return b"".join(chunks)


def _encode_step_totals(totals: StepTotals) -> bytes:
    sums = struct.pack(
        "<QQQQQd",
        totals.count,
        totals.complete,
        totals.items,
        totals.sampled,
        totals.sampled_ns,
        totals.samples,
    )
    return sums + _encode_statistic(totals.duration)


def _encode_statistic(statistic: Statistic) -> bytes:
    buckets = np.stack([statistic.bucket_indices, statistic.bucket_counts], axis=1).astype("<u8")
    head = struct.pack(
        "<QQQQQQQ",
        statistic.count,
        statistic.total_ns,
        statistic.sum_of_squares & 0xFFFFFFFFFFFFFFFF,
        statistic.sum_of_squares >> 64,
        statistic.min_ns,
        statistic.max_ns,
        len(buckets),
    )
    return head + buckets.tobytes()


def encode_collective_groups(collectives: Collectives) -> bytes:
    return encode_json(
        {
            "groups": [asdict(group) for group in collectives.groups],
            "operations": collectives.operations,
            "missed": collectives.missed,
            "was_read": collectives.was_read,
            "notes": [],
            "cost_ns": 0,
        }
    )


def encode_stalls(stalls: Sequence[Stall], paths: Sequence[str]) -> bytes:
    """Where devices were is not written: a reader finds it out."""
    return encode_json(
        {
            "stalls": [
                {
                    "since_ns": stall.since_ns,
                    "noticed_ns": stall.noticed_ns,
                    "ended_ns": stall.ended_ns,
                    "limit_ns": stall.limit_ns,
                    "step": stall.step,
                    "paths": [[thread, paths.index(path)] for thread, path in stall.paths],
                    "answer": {"stacks": stall.stacks, "groups": list(map(_row, stall.groups))},
                    "traceback": None,
                }
                for stall in stalls
            ]
        }
    )


def _row(group: GroupProgress) -> tuple[Any, ...]:
    enqueued = None if group.enqueued < 0 else group.enqueued
    return group.group, enqueued, group.started, group.completed, group.operation


def encode_sync_sites(sites: Sequence[SyncSite]) -> list[bytes]:
    return [
        struct.pack("<II", site.line, site.kind | (ALLOWED if site.is_allowed else 0))
        + encode_name(site.file)
        + encode_name(_function_and_library(site))
        for site in sites
    ]


def _function_and_library(site: SyncSite) -> str:
    inner = site.library
    if inner is None:
        return site.function
    return "\0".join((site.function, str(inner.line), inner.function, inner.file))


def encode_sync_statistics(syncs: Syncs) -> bytes:
    head = struct.pack(
        "<QQII", len(syncs.events), syncs.dropped, len(syncs.watched_ns), syncs.is_as_if
    )
    watched = [struct.pack("<qq", *interval) for interval in syncs.watched_ns]
    rows = [
        struct.pack("<IIQQQQ", number, 0, *astuple(site.totals))
        for number, site in enumerate(syncs.sites)
        if site.totals.count
    ]
    return b"".join([head, *watched, *rows])
