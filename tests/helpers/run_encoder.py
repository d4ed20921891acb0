# SPDX-License-Identifier: Apache-2.0
"""A run as the bytes of a run file, so that tests can read runs that they made by hand."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.format.blocks import BlockType
from pyinstrument_gpu.format.items import (
    COLLECTIVE_ITEM,
    COLLECTIVE_P2P,
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    METRIC_ITEM,
    NO_STREAM,
    NONE,
    PATH_ITEM,
    SPAN_ITEM,
    STEP_COMPLETE,
    STEP_ITEM,
    STREAM_ITEM,
    SYNC_ITEM,
    TIME_UNFINISHED,
)
from pyinstrument_gpu.format.state import DeviceState, OpenPhaseState, OpenStepState, State
from pyinstrument_gpu.format.statistics import StatisticsDocument
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import SpanFlag
from tests.helpers.encoders import (
    encode_collective_groups,
    encode_json,
    encode_name,
    encode_stalls,
    encode_state,
    encode_statistics,
    encode_sync_sites,
    encode_sync_statistics,
    encode_thread,
)
from tests.helpers.run_writer import RunWriter

# A flag of a device time that readers do not know: that it is missing, they do.
_LOST = 2


def save(run: RunData, path: str | os.PathLike[str]) -> None:
    """Write a run as a run file; `notes` are not kept."""
    Path(path).write_bytes(encode(run))


def encode(run: RunData) -> bytearray:
    """The bytes of that file."""
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.ENVIRONMENT, encode_json(run.environment))
    writer.append(BlockType.NAMES, [encode_name(name) for name in run.names])
    writer.append_records(BlockType.PATHS, _paths(run))
    writer.append(BlockType.THREADS, [encode_thread(thread) for thread in run.threads])
    streams = [(stream.handle, stream.device, 0) for stream in run.streams]
    writer.append_records(BlockType.STREAMS, np.array(streams, STREAM_ITEM))
    writer.append_records(BlockType.DEVICE_CLOCKS, _clock_points(run))
    writer.append_records(BlockType.STEPS, _steps(run))
    writer.append_records(BlockType.SPANS, _spans(run))
    device_times = _device_times(run)
    writer.append_records(BlockType.DEVICE_TIMES, device_times)
    if run.syncs.was_watched:
        writer.append(BlockType.SYNC_SITES, encode_sync_sites(run.syncs.sites))
        writer.append_records(BlockType.SYNCS, _syncs(run))
        writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(run.syncs))
    writer.append(BlockType.METRIC_NAMES, [encode_name(name) for name in run.metric_names])
    writer.append_records(BlockType.METRICS, _metrics(run))
    if run.collectives.was_read or run.collectives.groups:
        writer.append_records(BlockType.COLLECTIVES, _collectives(run))
        groups = encode_collective_groups(run.collectives)
        writer.write_document(BlockType.COLLECTIVE_GROUPS, groups)
    if run.stalls:
        writer.write_document(BlockType.STALLS, encode_stalls(run.stalls, run.paths))
    counts = len(run.spans), len(run.steps.closed), len(device_times)
    statistics = StatisticsDocument(*counts, run.step_totals, run.statistics, run.profiled_totals)
    writer.write_document(BlockType.STATISTICS, encode_statistics(statistics))
    writer.write_document(BlockType.STATE, encode_state(_state(run, *counts)))
    return writer.data


def _or_none(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Indices as files have them, where -1 is another number."""
    return np.where(numbers < 0, NONE, numbers)


def _paths(run: RunData) -> NDArray[np.void]:
    items = np.empty(len(run.path_names), PATH_ITEM)
    items["parent"], items["name"] = _or_none(run.path_parents), run.path_names
    return items


def _clock_points(run: RunData) -> NDArray[np.void]:
    parts = [np.zeros(len(clock.device_ns), DEVICE_CLOCK_ITEM) for clock in run.device_clocks]
    for part, clock in zip(parts, run.device_clocks, strict=True):
        part["device"] = clock.device
        part["device_ns"], part["run_ns"] = clock.device_ns, clock.run_ns
        part["uncertainty_ns"] = clock.uncertainties_ns
    return np.concatenate([np.zeros(0, DEVICE_CLOCK_ITEM), *parts])


def _steps(run: RunData) -> NDArray[np.void]:
    steps = run.steps.closed
    items = np.empty(len(steps), STEP_ITEM)
    for column in ("thread", "begin_ns", "end_ns", "samples", "items"):
        items[column] = steps[column]
    items["serial"] = steps["index"]
    items["flags"] = np.where(steps["complete"], STEP_COMPLETE, 0)
    return items


def _spans(run: RunData) -> NDArray[np.void]:
    items = np.empty(len(run.spans), SPAN_ITEM)
    for column in ("host_begin_ns", "host_end_ns", "path", "thread", "depth"):
        items[column] = run.spans[column]
    items["step"] = _or_none(run.spans["step"])
    items["self_ns"] = run.span_self_ns
    # Which are unfinished, their device times say.
    items["flags"] = run.spans["flags"] & ~np.uint32(SpanFlag.DEVICE_UNFINISHED)
    return items


def _device_times(run: RunData) -> NDArray[np.void]:
    """Also those that are not known, so that the file says whether their work was unfinished."""
    flags = run.spans["flags"]
    known = run.span_device_ns >= 0
    unfinished = ~known & ((flags & SpanFlag.DEVICE_UNFINISHED) != 0)
    span = np.flatnonzero(known | unfinished | ((flags & SpanFlag.DEVICE) != 0))
    state = np.where(known, 0, np.where(unfinished, TIME_UNFINISHED, _LOST))[span]
    stream = run.spans["stream"][span].astype(np.int64)
    items = np.empty(len(span), DEVICE_TIME_ITEM)
    items["where"] = span | np.where(stream < 0, NO_STREAM, stream) << 40 | state << 56
    items["begin_ns"] = run.span_device_clock_ns[span]
    items["duration_ns"] = run.span_device_ns[span]
    return items


def _syncs(run: RunData) -> NDArray[np.void]:
    items = np.empty(len(run.syncs.events), SYNC_ITEM)
    for column in ("begin_ns", "duration_ns", "bytes", "site", "thread"):
        items[column] = run.syncs.events[column]
    for column in ("path", "step"):
        items[column] = _or_none(run.syncs.events[column])
    return items


def _metrics(run: RunData) -> NDArray[np.void]:
    items = np.empty(len(run.metrics), METRIC_ITEM)
    for column in ("update", "host_ns", "name", "value"):
        items[column] = run.metrics[column]
    items["step"] = _or_none(run.metrics["step"])
    return items


def _collectives(run: RunData) -> NDArray[np.void]:
    events = run.collectives.events
    items = np.empty(len(events), COLLECTIVE_ITEM)
    for column in events.dtype.names or ():
        if column != "is_p2p":
            items[column] = events[column]
    items["flags"] = np.where(events["is_p2p"], COLLECTIVE_P2P, 0)
    return items


def _state(run: RunData, spans: int, closed_steps: int, device_times: int) -> State:
    path_ids = {path: number for number, path in enumerate(run.paths)}
    step = run.open_step
    return State(
        now_ns=run.duration_ns,
        final=run.complete,
        error=run.error,
        anchor=run.anchor,
        spans=spans,
        steps=closed_steps,
        device_times=device_times,
        step_drops=0,
        metrics=len(run.metrics),
        collectives=len(run.collectives.events),
        dropped=run.dropped,
        harvester_cpu_ns=run.harvester_cpu_ns,
        phases_recorded=run.phases_recorded,
        open_step=None
        if step is None
        else OpenStepState(step.index, step.thread, step.begin_ns, step.samples, step.items),
        open_phases=tuple(
            OpenPhaseState(
                phase.thread, path_ids[phase.path], phase.begin_ns, phase.step, phase.depth
            )
            for phase in run.open_phases
        ),
        device=None
        if run.device_timing is None
        else DeviceState(
            run.device_timing,
            tuple((path_ids[path], spans) for path, spans in run.pending_device_work.items()),
        ),
    )
