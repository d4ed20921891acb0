# SPDX-License-Identifier: Apache-2.0
"""Runs and blocks as the bytes of a run file.

A recording is written by the native module. This is for runs that are made or changed in Python.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.cursor import encode_text
from pyinstrument_gpu.core.file.items import (
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    NO_STREAM,
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
    or_none,
)
from pyinstrument_gpu.core.file.json_document import encode_json
from pyinstrument_gpu.core.file.names import encode_thread
from pyinstrument_gpu.core.file.run_writer import RunWriter
from pyinstrument_gpu.core.file.state import (
    DeviceState,
    OpenPhaseState,
    OpenStepState,
    State,
    encode_state,
)
from pyinstrument_gpu.core.file.statistics import StatisticsDocument, encode_statistics
from pyinstrument_gpu.core.file.syncs import encode_sync_site, encode_sync_statistics
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag

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
    parents = or_none(run.path_parents)
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
    step = or_none(spans["step"])
    items = columns(spans, SPAN_ITEM, step=step, self_ns=run.span_self_ns, flags=flags)
    writer.append_records(BlockType.SPANS, items)
    device_times = _device_times(run)
    writer.append_records(BlockType.DEVICE_TIMES, device_times)
    if run.syncs.was_watched:
        events = run.syncs.events
        path, step = or_none(events["path"]), or_none(events["step"])
        writer.append(BlockType.SYNC_SITES, map(encode_sync_site, run.syncs.sites))
        writer.append_records(BlockType.SYNCS, columns(events, SYNC_ITEM, path=path, step=step))
        writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(run.syncs))
    for aspect in aspects():
        aspect.write(run, writer)
    counts = len(spans), len(steps), len(device_times)
    statistics = StatisticsDocument(*counts, run.step_totals, run.statistics, run.profiled_totals)
    writer.write_document(BlockType.STATISTICS, encode_statistics(statistics))
    writer.write_document(BlockType.STATE, encode_state(_state(run, writer, *counts)))
    return writer.data


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


def _state(run: Run, writer: RunWriter, spans: int, closed_steps: int, device_times: int) -> State:
    path_ids = {path: number for number, path in enumerate(run.paths)}
    step, timing = run.open_step, run.device_timing
    pending = tuple((path_ids[path], spans) for path, spans in run.pending_device_work.items())
    return State(
        now_ns=run.duration_ns,
        final=run.complete,
        error=run.error,
        anchor=run.anchor,
        spans=spans,
        steps=closed_steps,
        device_times=device_times,
        metrics=writer.count(BlockType.METRICS),
        collectives=writer.count(BlockType.COLLECTIVES),
        dropped=run.dropped,
        harvester_cpu_ns=run.harvester_cpu_ns,
        phases_recorded=run.phases_recorded,
        open_step=None
        if step is None
        else OpenStepState(step.index, step.thread, step.begin_ns, step.samples, step.items),
        open_phases=tuple(
            OpenPhaseState(one.thread, path_ids[one.path], one.begin_ns, one.step, one.depth)
            for one in run.open_phases
        ),
        device=None if timing is None else DeviceState(timing, pending),
    )
