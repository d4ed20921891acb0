# SPDX-License-Identifier: Apache-2.0
"""Runs and blocks as the bytes of a run file.

A recording is written by the native module. This is for runs that tests make or change in Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import to_builtins
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import PAYLOAD_BYTES, SLOT_BYTES, SLOTS_OFFSET
from pyinstrument_gpu.core.file.items import (
    COLLECTIVE_ITEM,
    COLLECTIVE_P2P,
    COLLECTIVE_WAIT,
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    METRIC_ITEM,
    NO_STREAM,
    NONE,
    PATH_ITEM,
    SPAN_INDEX_BITS,
    SPAN_ITEM,
    STEP_COMPLETE,
    STEP_ITEM,
    STEP_PROFILED,
    STREAM_ITEM,
    SYNC_ITEM,
    TIME_UNFINISHED,
    columns,
)
from pyinstrument_gpu.core.file.state import OpenPhaseState, OpenStepState, State
from pyinstrument_gpu.core.file.statistics import StatisticsDocument
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from tests.helpers.encoders import (
    encode_collective_groups,
    encode_json,
    encode_stalls,
    encode_state,
    encode_statistics,
    encode_sync_site,
    encode_sync_statistics,
    encode_text,
    encode_thread,
    pack_block,
    pack_file_header,
)

_HISTORY = (BlockType.SPANS, BlockType.STEPS, BlockType.DEVICE_TIMES, BlockType.COLLECTIVES)
# A flag of a device time that readers do not know: that it is missing, they do.
_LOST = 2


def save(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run as a run file, as far as `encode` keeps it."""
    Path(path).write_bytes(encode(run))


def encode(run: Run) -> bytearray:
    """The bytes of a file with this run, without its modules, its memory and energy, and its notes,
    which readers find anew."""
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.ENVIRONMENT, encode_json(run.environment))
    writer.append(BlockType.NAMES, map(encode_text, run.names))
    parents = _or_none(run.path_parents)
    paths = columns(run.path_names, PATH_ITEM, parent=parents, name=run.path_names)
    writer.append_records(BlockType.PATHS, paths)
    writer.append(BlockType.THREADS, map(encode_thread, run.threads))
    streams = [(stream.handle, stream.device, 0) for stream in run.streams]
    writer.append_records(BlockType.STREAMS, np.array(streams, STREAM_ITEM))
    for clock in run.device_clocks:
        points = {"device": clock.device, "pad": 0, "uncertainty_ns": clock.uncertainties_ns}
        times = {"device_ns": clock.device_ns, "run_ns": clock.run_ns}
        items = columns(clock.device_ns, DEVICE_CLOCK_ITEM, **points, **times)
        writer.append_records(BlockType.DEVICE_CLOCKS, items)
    steps, spans = run.steps.closed, run.spans
    profiled = run.profiled.among(steps["index"])
    flags = np.where(steps["complete"], STEP_COMPLETE, 0) | np.where(profiled, STEP_PROFILED, 0)
    items = columns(steps, STEP_ITEM, serial=steps["index"], flags=flags)
    writer.append_records(BlockType.STEPS, items)
    # Which are unfinished, their device times say.
    flags = spans["flags"] & ~np.uint32(SpanFlag.DEVICE_UNFINISHED)
    step = _or_none(spans["step"])
    items = columns(spans, SPAN_ITEM, step=step, self_ns=run.span_self_ns, flags=flags)
    writer.append_records(BlockType.SPANS, items)
    device_times = _device_times(run)
    writer.append_records(BlockType.DEVICE_TIMES, device_times)
    if run.syncs.was_watched:
        events = run.syncs.events
        path, step = _or_none(events["path"]), _or_none(events["step"])
        writer.append(BlockType.SYNC_SITES, map(encode_sync_site, run.syncs.sites))
        writer.append_records(BlockType.SYNCS, columns(events, SYNC_ITEM, path=path, step=step))
        writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(run.syncs))
    writer.append(BlockType.METRIC_NAMES, map(encode_text, run.metric_names))
    items = columns(run.metrics, METRIC_ITEM, step=_or_none(run.metrics["step"]))
    writer.append_records(BlockType.METRICS, items)
    if run.collectives.was_read or run.collectives.groups:
        events = run.collectives.events
        flags = np.where(events["is_p2p"], COLLECTIVE_P2P, 0)
        items = columns(events, COLLECTIVE_ITEM, flags=flags)
        writer.append_records(BlockType.COLLECTIVES, items)
        waits = run.collectives.waits
        times = {"created_ns": waits["begin_ns"], "ended_ns": waits["end_ns"]}
        others = dict.fromkeys(("started_ns", "duration_ns", "bytes"), -1)
        others |= dict.fromkeys(("sequence", "group", "operation"), 0)
        kinds = COLLECTIVE_WAIT | np.where(waits["is_p2p"], COLLECTIVE_P2P, 0)
        items = columns(waits, COLLECTIVE_ITEM, flags=kinds, **times, **others)
        writer.append_records(BlockType.COLLECTIVES, items)
        document = encode_collective_groups(run.collectives)
        writer.write_document(BlockType.COLLECTIVE_GROUPS, document)
    if run.stalls:
        writer.write_document(BlockType.STALLS, encode_stalls(run.stalls, run.paths))
    if run.startup is not None:
        document = encode_json({"startup": to_builtins(run.startup)})
        writer.write_document(BlockType.ASPECTS, document)
    if run.operations is not None:
        document = encode_json(to_builtins(run.operations))
        writer.write_document(BlockType.OPERATIONS, document)
    counts = len(spans), len(steps), len(device_times)
    statistics = StatisticsDocument(*counts, run.step_totals, run.statistics, run.profiled_totals)
    writer.write_document(BlockType.STATISTICS, encode_statistics(statistics))
    writer.write_document(BlockType.STATE, encode_state(_state(run, *counts)))
    return writer.data


def _or_none(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices as files have them, where -1 is another number."""
    return np.where(numbers < 0, NONE, numbers)


def _device_times(run: Run) -> NDArray[np.void]:
    """Also those that are not known, so that the file says whether their work was unfinished."""
    flags = run.spans["flags"]
    known = run.span_device_ns >= 0
    unfinished = ~known & ((flags & SpanFlag.DEVICE_UNFINISHED) != 0)
    span = np.flatnonzero(known | unfinished | ((flags & SpanFlag.DEVICE) != 0))
    state = np.where(known, 0, np.where(unfinished, TIME_UNFINISHED, _LOST))[span]
    stream = run.spans["stream"][span].astype(np.int64)
    stream[stream < 0] = NO_STREAM
    return columns(
        span,
        DEVICE_TIME_ITEM,
        where=span | stream << SPAN_INDEX_BITS | state << SPAN_INDEX_BITS + 16,
        begin_ns=run.span_device_clock_ns[span],
        duration_ns=run.span_device_ns[span],
    )


def _state(run: Run, spans: int, closed_steps: int, device_times: int) -> State:
    path_ids = {path: number for number, path in enumerate(run.paths)}
    step, timing = run.open_step, run.device_timing
    pending = tuple((path_ids[path], spans) for path, spans in run.pending_device_work.items())
    return State(
        now_ns=run.duration_ns,
        active_ns=run.active_ns,
        final=run.complete,
        error=run.error,
        anchor=run.anchor,
        spans=spans,
        steps=closed_steps,
        device_times=device_times,
        metrics=len(run.metrics),
        collectives=len(run.collectives.events) + len(run.collectives.waits),
        dropped=run.dropped,
        harvester_cpu_ns=run.harvester_cpu_ns,
        phases_recorded=run.phases_recorded,
        open_step=None
        if step is None
        else OpenStepState(
            serial=step.index,
            thread=step.thread,
            begin_ns=step.begin_ns,
            samples=step.samples,
            items=step.items,
        ),
        open_phases=tuple(
            OpenPhaseState(one.thread, path_ids[one.path], one.begin_ns, one.step, one.depth)
            for one in run.open_phases
        ),
        device=None if timing is None else replace(timing, pending=pending),
    )


@dataclass
class _Log:
    """The newest block of a log."""

    slot: int
    sequence: int
    first: int
    items: int = 0
    payload: bytearray = field(default_factory=bytearray)


class RunWriter:
    """Writes blocks into the bytes of a run file, framed as a recording frames them: logs grow in
    place, documents alternate between two sets of slots, and the oldest history gives its slots
    away.

    Args:
        run_id: the file's own number.
        max_slots: beyond this many slots the oldest history gives its slots away.

    Attributes:
        data: the file as it is by now.
        history_dropped: by type of block the items that have made room.
    """

    def __init__(self, run_id: int, max_slots: int = 1 << 32) -> None:
        self.data = bytearray(pack_file_header(run_id))
        self.history_dropped = dict.fromkeys(_HISTORY, 0)
        self._run_id = run_id
        self._max_slots = max_slots
        self._slots = 0
        self._logs: dict[BlockType, _Log] = {}
        self._full_history: list[tuple[int, BlockType, int]] = []
        self._versions: dict[BlockType, int] = {}
        self._document_slots: dict[tuple[BlockType, int], list[int]] = {}

    def append(self, block_type: BlockType, items: Iterable[bytes]) -> None:
        """Append items to a log; none of them is larger than `PAYLOAD_BYTES`."""
        log = self._logs.get(block_type)
        for item in items:
            if log is None or len(log.payload) + len(item) > PAYLOAD_BYTES:
                log = self._next(block_type, log)
            log.items += 1
            log.payload += item
        if log is not None:
            self._write_log(block_type, log)

    def append_records(self, block_type: BlockType, records: NDArray[Any]) -> None:
        """Append the items of an array."""
        data, step = records.tobytes(), records.itemsize
        self.append(block_type, (data[at : at + step] for at in range(0, len(data), step)))

    def write_document(self, block_type: BlockType, content: bytes) -> None:
        """Write the next version of a document."""
        version = self._versions.get(block_type, 0) + 1
        self._versions[block_type] = version
        slots = self._document_slots.setdefault((block_type, version % 2), [])
        parts = max(1, -(-len(content) // PAYLOAD_BYTES))
        while len(slots) < parts:
            slots.append(self._allocate())
        for part in range(parts):
            payload = content[part * PAYLOAD_BYTES : (part + 1) * PAYLOAD_BYTES]
            self._write(block_type, slots[part], version, part + (parts << 32), payload)

    def _next(self, block_type: BlockType, log: _Log | None) -> _Log:
        """The block after this one, which is full."""
        sequence, first = 0, 0
        if log is not None:
            self._write_log(block_type, log)
            if block_type in _HISTORY:
                self._full_history.append((log.slot, block_type, log.items))
            sequence, first = log.sequence + 1, log.first + log.items
        self._logs[block_type] = _Log(self._allocate(), sequence, first)
        return self._logs[block_type]

    def _allocate(self) -> int:
        if self._slots >= self._max_slots and self._full_history:
            slot, block_type, items = self._full_history.pop(0)
            self.history_dropped[block_type] += items
            return slot
        self._slots += 1
        return self._slots - 1

    def _write_log(self, block_type: BlockType, log: _Log) -> None:
        self._write(block_type, log.slot, log.sequence, log.first, bytes(log.payload))

    def _write(
        self, block_type: BlockType, slot: int, sequence: int, first: int, payload: bytes
    ) -> None:
        block = pack_block(block_type, self._run_id, slot, sequence, first, payload)
        begin = SLOTS_OFFSET + slot * SLOT_BYTES
        self.data.extend(bytes(max(0, begin + len(block) - len(self.data))))
        self.data[begin : begin + len(block)] = block
