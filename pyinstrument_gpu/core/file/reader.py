# SPDX-License-Identifier: Apache-2.0
"""The run file as a run: what its blocks say together, and what is missing.

Everything read is checked: a damaged file gives less, or an error, but never a wrong number.
History comes out as a prefix of what was written. Statistics are those of the newest STATISTICS
document plus what the history holds beyond it; both are exact, so nothing is counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from pyinstrument_gpu.core.aspect import aspects, profiled_ranges
from pyinstrument_gpu.core.cause import NOTED_DTYPE, NotedCauses
from pyinstrument_gpu.core.file.blocks import INDEX_LIMIT, Blocks, BlockType, Records, true_prefix
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS, known_clocks
from pyinstrument_gpu.core.file.device_times import apply_device_times, mark_unfinished
from pyinstrument_gpu.core.file.environment import decode_environment
from pyinstrument_gpu.core.file.found import Found
from pyinstrument_gpu.core.file.framing import read_blocks, read_blocks_of
from pyinstrument_gpu.core.file.items import (
    CAUSE_ITEM,
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    DROPPED_STEP_ITEM,
    NONE,
    SPAN_ITEM,
    STEP_ITEM,
    STREAM_ITEM,
    columns,
)
from pyinstrument_gpu.core.file.names import (
    LogTables,
)
from pyinstrument_gpu.core.file.state import (
    DeviceTimingSummary,
    OpenPhaseState,
    State,
    decode_state,
)
from pyinstrument_gpu.core.file.statistics import (
    StatisticsDocument,
    decode_statistics,
    with_blocked,
    with_moved_outside,
    with_newer_device_times,
    with_newer_spans,
)
from pyinstrument_gpu.core.file.steps import (
    StepNumbering,
    is_behind_its_step,
    known_open_step,
    known_steps,
)
from pyinstrument_gpu.core.file.syncs import known_syncs
from pyinstrument_gpu.core.record import OpenPhase, Thread, named_streams
from pyinstrument_gpu.core.schema import SPAN_DTYPE, span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import ProfiledSteps, Steps, fold_steps, no_steps
from pyinstrument_gpu.core.syncs import blocked_ns
from pyinstrument_gpu.errors import RunFileError

_KNOWN_TYPES = frozenset(BlockType)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of the `Run` in a run file; errors as in `Run.load`."""
    aspects()  # is imported now: the file may take the last free descriptor
    try:
        # Not numpy.fromfile, which needs two free descriptors.
        with open(path, "rb", buffering=0) as file:
            return decode_blocks(read_blocks_of(file))
    except RunFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None


def decode(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """The arguments of the `Run` in the bytes of a run file; errors as in `Run.load`."""
    return decode_blocks(read_blocks(data))


def decode_blocks(blocks: Blocks) -> dict[str, Any]:
    """The arguments of the `Run` in the blocks of a run file; see `Run.from_blocks`."""
    notes: list[str] = []
    known = blocks.document(BlockType.ENVIRONMENT, decode_environment)
    state = blocks.document(BlockType.STATE, decode_state)
    statistics = blocks.document(BlockType.STATISTICS, decode_statistics)
    environment, left_out = ({}, ()) if known is None else known
    if known is None:
        notes.append("the facts about the machine and the program are missing or damaged")
    if left_out:
        notes.append(
            "of the facts about the machine and the program, these were left out, because their "
            f"values are impossible: {', '.join(left_out)}"
        )
    notes += environment.get("module_notes", [])
    if state is None:
        state = State()
        notes.append("the state of the recording is missing or damaged")

    tables = LogTables()
    tables.add(blocks)
    names, threads = tables.names, tables.threads
    paths = tables.paths
    dropped_steps = blocks.table(BlockType.DROPPED_STEPS, DROPPED_STEP_ITEM).items
    stream_items = blocks.table(BlockType.STREAMS, STREAM_ITEM).items
    streams = named_streams(stream_items[["device", "handle"]].tolist())
    clocks = known_clocks(blocks.table(BlockType.DEVICE_CLOCKS, DEVICE_CLOCK_ITEM).items)
    step_records, span_records, time_records = (
        blocks.history(block_type, dtype, state.dropped.get(cause, 0))
        for block_type, dtype, cause in (
            (BlockType.STEPS, STEP_ITEM, "step_history"),
            (BlockType.SPANS, SPAN_ITEM, "span_history"),
            (BlockType.DEVICE_TIMES, DEVICE_TIME_ITEM, "device_history"),
        )
    )

    numbering = StepNumbering.of(dropped_steps, step_records, state)
    steps = known_steps(step_records, numbering, len(threads), state)
    spans, span_self_ns = known_spans(
        span_records, numbering, tables.path_names, len(threads), state
    )
    times = apply_device_times(time_records.items, spans, span_records.first, streams, clocks)
    mark_unfinished(spans, span_records.first, times, time_records.first, state)

    anchor = environment.get("anchor", {})
    found = Found(
        blocks=blocks,
        state=state,
        notes=notes,
        tables=tables,
        anchor=anchor,
        numbering=numbering,
        step_records=step_records,
        steps=steps,
        spans=spans,
    )
    found.note_lacking(BlockType.SPANS, "spans", span_records, len(spans), state.spans)
    found.note_lacking(BlockType.STEPS, "steps", step_records, len(steps), state.steps)
    found.note_lacking(
        BlockType.DEVICE_TIMES, "device times", time_records, times.kept, state.device_times
    )
    if times.orphans:
        notes.append(
            f"{times.orphans:,} device times were left out: their spans or streams are lost"
        )
    if times.unplaced:
        notes.append(
            f"{times.unplaced:,} device times have no position on the time axis: the clock of "
            "their device was never compared with the host's"
        )

    recorded: dict[str, Any] = {}
    for aspect in aspects():
        recorded |= aspect.read(found)
    profiled_steps = ProfiledSteps(profiled_ranges(recorded))
    if statistics is None:
        statistics = StatisticsDocument(0, 0, 0, no_steps(), {})
        notes.append("the statistics cover only the spans and steps that are in the file")
    if not profiled_steps.ranges and statistics.profiled_totals.count:
        notes.append(
            "which steps were profiled is not known: times of phases and steps may include them"
        )
    if blocks.shortened and (
        statistics.spans < span_records.first or statistics.steps < step_records.first
    ):
        # Of what came after the statistics, the first part is not there. With the rest alone there
        # would be other numbers of spans than of steps, and wrong times per step.
        statistics = replace(statistics, spans=INDEX_LIMIT, steps=INDEX_LIMIT)
    newer_steps = steps[max(0, statistics.steps - step_records.first) :]
    profiled = profiled_steps.among(newer_steps["index"])
    step_totals = statistics.step_totals + fold_steps(newer_steps[~profiled])
    profiled_totals = statistics.profiled_totals + fold_steps(newer_steps[profiled])
    scopes = span_scopes(spans, profiled_steps.among(spans["step"]))
    behind = is_behind_its_step(steps, spans["step"], spans["host_begin_ns"])
    if behind.any():
        statistics = with_moved_outside(
            statistics,
            span_records.first,
            time_records.first,
            spans,
            span_self_ns,
            times,
            *(scopes, behind),
        )
        spans["step"][behind] = -1
        scopes[behind] = Scope.OUTSIDE
    phases = with_newer_spans(statistics, span_records, scopes)
    phases, uncounted = with_newer_device_times(
        statistics, phases, time_records.first, times, spans, scopes, state
    )
    if uncounted:
        notes.append(f"the statistics do not include {uncounted:,} of the last device times")
    counted = sum(phase.count for phase in phases.values())
    if counted < state.phases_recorded:
        notes.append(
            f"the statistics do not include {state.phases_recorded - counted:,} of the last spans"
        )
    known_phases = {key: phase for key, phase in phases.items() if key[0] < len(paths)}
    if len(known_phases) < len(phases):
        notes.append("the statistics of phases whose names are missing were left out")

    late = 0 if state.final else int(np.count_nonzero(steps["end_ns"] > state.now_ns))
    if late and state.now_ns:
        notes.append(
            f"the last {late:,} steps ended after the last heartbeat: the statistics may lack "
            "some of their phases"
        )

    syncs = known_syncs(blocks, numbering, steps, len(paths), len(threads), state)
    if syncs.was_watched:
        spans["blocked_ns"] = blocked_ns(spans, syncs)
    last_ends_ns = (column.max(initial=0) for column in (spans["host_end_ns"], steps["end_ns"]))
    duration_ns = max(state.now_ns, *map(int, last_ends_ns))
    open_step = known_open_step(state.open_step, numbering, step_records, steps, len(threads))
    if not state.final:
        notes.append(
            "the recording was not stopped: the process ended before that or is still running; its "
            f"last heartbeat was at {state.now_ns / 1e9:.3f} s"
        )
    if state.error is not None:
        notes.append(f"the history ends early: {state.error}")
    # What a process was writing when it died is no damage; what is missing is said above.
    damaged = blocks.damaged + (blocks.partly_written and state.final and state.error is None)
    if damaged:
        notes.append(
            f"{damaged:,} of the file's blocks were left out: damaged or only partly written"
        )
    unknown = {*blocks.documents, *blocks.logs} - _KNOWN_TYPES
    if unknown:
        kinds_left_out = "one kind" if len(unknown) == 1 else f"{len(unknown)} kinds"
        notes.append(
            f"a newer version of pyinstrument_gpu wrote this file: blocks of {kinds_left_out} that "
            "this version does not know were left out"
        )
    columns: dict[str, Any] = dict(
        names=names,
        path_parents=tables.path_parents,
        path_names=tables.path_names,
        threads=threads,
        streams=streams,
        environment=environment,
        dropped=state.dropped,
        spans=spans,
        span_self_ns=span_self_ns,
        span_device_ns=times.device_ns,
        span_device_clock_ns=times.device_clock_ns,
        device_clocks=clocks,
        device_timing=state.device and structs.replace(state.device, pending=()),
        pending_device_work=_pending_device_work(state.device, paths, tables.path_kinds),
        steps=Steps.with_open(steps, open_step),
        step_totals=step_totals,
        profiled_totals=profiled_totals,
        statistics=with_blocked(known_phases, spans, scopes),
        open_phases=tuple(_open_phases(state.open_phases, paths, numbering, len(threads))),
        open_step=open_step,
        complete=state.final,
        notes=tuple(notes),
        duration_ns=duration_ns,
        phases_recorded=max(state.phases_recorded, counted),
        harvester_cpu_ns=state.harvester_cpu_ns,
        anchor=state.anchor,
        active_ns=state.active_ns,
        error=state.error,
        syncs=syncs,
        noted_causes=known_causes(blocks, numbering, threads),
        **recorded,
    )
    for aspect in aspects():
        aspect.take_out(columns, found)
    return columns


def _pending_device_work(
    device: DeviceTimingSummary | None, paths: Sequence[str], kinds: NDArray[np.uint32]
) -> dict[str, int]:
    if device is None:
        return {}
    return {
        paths[path]: spans
        for path, spans in device.pending
        if path < len(paths) and spans and kinds[path] == 0
    }


def _open_phases(
    states: Sequence[OpenPhaseState], paths: Sequence[str], numbering: StepNumbering, threads: int
) -> Iterator[OpenPhase]:
    for state in states:
        step = -1 if state.step_serial < 0 else numbering.index(state.step_serial)
        if step is not None and state.path < len(paths) and state.thread < threads:
            yield OpenPhase(paths[state.path], state.thread, state.begin_ns, step, state.depth)


# Spans are converted in chunks whose input and output fit the processor's cache.
_CHUNK = 8192


def known_spans(
    records: Records,
    numbering: StepNumbering,
    path_names: NDArray[np.uint32],
    threads: int,
    state: State,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    """The spans up to the first that can't be true, and their self times; nothing of a device."""
    spans = np.empty(len(records.items), SPAN_DTYPE)
    self_ns = np.empty(len(spans), np.int64)
    for begin in range(0, len(spans), _CHUNK):
        items = records.items[begin : begin + _CHUNK]
        host_begin_ns = np.ascontiguousarray(items["host_begin_ns"])
        duration_ns = items["host_end_ns"] - host_begin_ns
        own_ns = np.ascontiguousarray(items["self_ns"])
        serials = np.ascontiguousarray(items["step"])
        good = true_prefix(
            numbering.is_certain(serials, state.spans - records.first - begin)
            & (items["path"] < len(path_names))
            & (items["thread"] < threads)
            & (host_begin_ns >= 0)
            & (duration_ns >= 0)
            & (items["host_end_ns"] < TIME_LIMIT_NS)
            & (own_ns >= -1)
            & (own_ns <= duration_ns)
        )
        items = items[:good]
        chunk = spans[begin : begin + good]
        for column in ("host_begin_ns", "host_end_ns", "path", "thread", "depth", "flags"):
            chunk[column] = items[column]
        chunk["phase"] = path_names[items["path"]]
        chunk["step"] = numbering.indices(serials[:good])
        for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
            chunk[column] = -1
        self_ns[begin : begin + good] = own_ns[:good]
        if good < len(serials):
            return spans[: begin + good], self_ns[: begin + good]
    return spans, self_ns


def known_causes(
    blocks: Blocks, numbering: StepNumbering, threads: Sequence[Thread]
) -> NotedCauses:
    """Return what may have made steps slow, up to the first item that can't be true."""
    log = blocks.records(BlockType.CAUSES, CAUSE_ITEM)
    items = log.items
    good = true_prefix(
        (items["begin_ns"] >= 0)
        & (items["begin_ns"] < TIME_LIMIT_NS)
        & (items["time_ns"] >= 0)
        & (items["time_ns"] < TIME_LIMIT_NS)
    )
    cut_ns = None if good == len(items) else int(items["begin_ns"][:good].max(initial=0))
    items = items[:good]
    serials = np.ascontiguousarray(items["step"])
    is_sum = serials != NONE
    # Of a sum whose step is not certain nothing can be said.
    certain = numbering.is_certain(serials, 0)
    steps: NDArray[np.int64] = np.where(is_sum & certain, numbering.indices(serials), -1)
    kept = ~is_sum | (steps >= 0)
    numbers = {thread.native_id: number for number, thread in enumerate(threads)}
    found = columns(
        items,
        NOTED_DTYPE,
        step=steps,
        thread=[numbers.get(one, -1) for one in items["thread"].tolist()],
    )
    since_ns = int(items["begin_ns"][0]) if log.first and len(items) else 0
    return NotedCauses(found[kept], since_ns, cut_ns)
