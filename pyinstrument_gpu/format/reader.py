# SPDX-License-Identifier: Apache-2.0
"""The run file as a `Run`: what its blocks say together, and what is missing.

Everything read is checked: a damaged file gives less, or an error, but never a wrong number.
History comes out as a prefix of what was written. Statistics are those of the newest STATISTICS
document plus what the history holds beyond it; both are exact, so nothing is counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.errors import RunFileDamagedError, RunFileError
from pyinstrument_gpu.format import sync_codec
from pyinstrument_gpu.format.codecs import (
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    DROPPED_STEP_ITEM,
    METRIC_ITEM,
    NONE,
    PATH_ITEM,
    SPAN_ITEM,
    STEP_COMPLETE,
    STEP_ITEM,
    STREAM_ITEM,
    DeviceState,
    OpenPhaseState,
    OpenStepState,
    State,
    StatisticsDocument,
    decode_environment,
    decode_names,
    decode_state,
    decode_statistics,
    decode_threads,
)
from pyinstrument_gpu.format.device_codec import (
    DeviceTimes,
    apply_device_times,
    clocks_of,
    streams_of,
    true_prefix,
)
from pyinstrument_gpu.format.framing import (
    Blocks,
    BlockType,
    read_blocks,
)
from pyinstrument_gpu.format.sync_codec import SYNC_ITEM
from pyinstrument_gpu.model.open_phase import OpenPhase
from pyinstrument_gpu.model.paths import join_paths
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.schema import (
    METRIC_DTYPE,
    SPAN_DTYPE,
    STEP_DTYPE,
    SpanFlag,
    span_scopes,
)
from pyinstrument_gpu.model.statistics import PhaseStatistics, Scope, fold_spans
from pyinstrument_gpu.model.step_totals import fold_steps
from pyinstrument_gpu.model.steps import Step, Steps
from pyinstrument_gpu.model.syncs import SYNC_DTYPE, Syncs, SyncTotals, blocked_ns, totals_of

_Item = TypeVar("_Item")
_Run = TypeVar("_Run", bound=RunData)
_Phases: TypeAlias = Mapping[tuple[int, Scope], PhaseStatistics]

# Spans are converted in stretches whose input and output fit the processor's cache.
_STRETCH = 8192
# No run gets there; sums with it stay within 64 bits.
_INDEX_LIMIT = 1 << 52


def load(path: str | os.PathLike[str], run_type: type[_Run]) -> _Run:
    """Read a run file; see `Run.load`."""
    try:
        return decode(np.fromfile(path, dtype=np.uint8).data, run_type)
    except RunFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None


def decode(data: bytes | bytearray | memoryview, run_type: type[_Run]) -> _Run:
    """The run in the bytes of a run file; errors as in `Run.load`."""
    blocks = read_blocks(data)
    notes: list[str] = []
    environment = _document(blocks, BlockType.ENVIRONMENT, decode_environment)
    state = _document(blocks, BlockType.STATE, decode_state)
    statistics = _document(blocks, BlockType.STATISTICS, decode_statistics)
    if environment is None:
        environment = {}
        notes.append("where the run was recorded is missing or damaged")
    if state is None:
        state = State()
        notes.append("the state of the recording is missing or damaged")

    names = _log(blocks, BlockType.NAMES, decode_names)
    threads = _log(blocks, BlockType.THREADS, decode_threads)
    paths = _known_paths(_records(blocks, BlockType.PATHS, PATH_ITEM).items, len(names))
    dropped_steps = _records(blocks, BlockType.DROPPED_STEPS, DROPPED_STEP_ITEM).items
    step_records = _records(
        blocks, BlockType.STEPS, STEP_ITEM, oldest_dropped=state.dropped.get("step_history", 0)
    )
    span_records = _records(
        blocks, BlockType.SPANS, SPAN_ITEM, oldest_dropped=state.dropped.get("span_history", 0)
    )

    time_records = _records(
        blocks,
        BlockType.DEVICE_TIMES,
        DEVICE_TIME_ITEM,
        oldest_dropped=state.dropped.get("device_history", 0),
    )
    streams = streams_of(_records(blocks, BlockType.STREAMS, STREAM_ITEM).items)
    clocks = clocks_of(_records(blocks, BlockType.DEVICE_CLOCKS, DEVICE_CLOCK_ITEM).items)

    numbering = _StepNumbering.of(dropped_steps, step_records, state)
    steps = _steps(step_records, numbering, len(threads), state.steps)
    spans, span_self_ns = _spans(span_records, numbering, paths["name"], len(threads), state.spans)
    metric_names = _log(blocks, BlockType.METRIC_NAMES, decode_names)
    metric_records = _records(blocks, BlockType.METRICS, METRIC_ITEM)
    metrics = _metrics(metric_records, numbering, len(metric_names), state.metrics)
    _note_missing(notes, "spans", span_records, len(spans), state.spans)
    _note_missing(notes, "steps", step_records, len(steps), state.steps)
    times = apply_device_times(time_records.items, spans, span_records.first, streams, clocks)
    _mark_unfinished(spans, span_records.first, times, time_records.first, state)
    _note_missing(notes, "device times", time_records, times.kept, state.device_times)
    if times.orphans:
        notes.append(f"left out: {times.orphans:,} device times of spans or streams that are lost")
    if times.unplaced:
        notes.append(
            f"without a place on the run's time axis: {times.unplaced:,} device times, for want of "
            "points of their device's clock"
        )
    _note_missing(notes, "values of metrics", metric_records, len(metrics), state.metrics)

    if statistics is None:
        statistics = StatisticsDocument(0, 0, 0, fold_steps(steps[:0]), {})
        notes.append("the statistics cover only the spans and steps that are in the file")
    step_totals = statistics.step_totals + fold_steps(
        steps[max(0, statistics.steps - step_records.first) :]
    )
    phases = _fold_newer_spans(statistics, span_records, spans)
    phases, uncounted = _fold_newer_device_times(
        statistics, phases, time_records.first, times, spans, state
    )
    if uncounted:
        notes.append(f"the statistics leave out {uncounted:,} of the last device times")
    counted = sum(phase.count for phase in phases.values())
    if counted < state.phases_recorded:
        notes.append(
            f"the statistics leave out {state.phases_recorded - counted} of the last spans"
        )
    known_phases = {key: phase for key, phase in phases.items() if key[0] < len(paths)}
    if len(known_phases) < len(phases):
        notes.append("the statistics of phases whose names are missing were left out")

    syncs = _syncs(blocks, numbering, steps, len(paths), len(threads), state)
    if syncs.was_watched:
        spans["blocked_ns"] = blocked_ns(spans, syncs)
    path_parents = np.where(paths["parent"] == NONE, -1, paths["parent"].astype(np.int64))
    known_paths = join_paths(names, path_parents, paths["name"])
    duration_ns = max(state.now_ns, _last_end(spans["host_end_ns"]), _last_end(steps["end_ns"]))
    open_step = _open_step(state.open_step, numbering, step_records, len(threads))
    if not state.final:
        notes.append(
            "the recording was not stopped: the process ended before, or it is still running; "
            f"last sign of life at {duration_ns / 1e9:.3f} s"
        )
    if state.error is not None:
        notes.append(f"the history ends early: {state.error}")
    if blocks.damaged:
        # Of a file that is being written, the newest block may be half there.
        notes.append(f"left out: {blocks.damaged:,} of the file's blocks, damaged or half written")
    return run_type(
        names=names,
        path_parents=path_parents,
        path_names=paths["name"],
        threads=threads,
        streams=streams,
        environment=environment,
        dropped=state.dropped,
        spans=spans,
        span_self_ns=span_self_ns,
        span_device_ns=times.device_ns,
        span_device_clock_ns=times.device_clock_ns,
        device_clocks=clocks,
        device_timing=None if state.device is None else state.device.timing,
        pending_device_work=_pending_device_work(state.device, known_paths),
        steps=Steps.with_open(steps, open_step),
        metric_names=metric_names,
        metrics=metrics,
        step_totals=step_totals,
        statistics=_with_blocked(known_phases, spans),
        open_phases=tuple(_open_phases(state.open_phases, known_paths, numbering, len(threads))),
        open_step=open_step,
        complete=state.final,
        notes=tuple(notes),
        duration_ns=duration_ns,
        phases_recorded=max(state.phases_recorded, counted),
        harvester_cpu_ns=state.harvester_cpu_ns,
        anchor=state.anchor,
        syncs=syncs,
    )


class _Records(NamedTuple):
    """The items of a log, and the index of the first of them."""

    first: int
    items: NDArray[Any]


@dataclass(frozen=True)
class _StepNumbering:
    """Turns the serial numbers of steps into the indices that users see.

    An index is certain only where all dropped steps below it are known. The log of dropped steps
    may have been cut, so that has to be shown: by a later dropped step, by a closed step whose
    serial number leaves room for no other dropped step than those known, or by a STATE that counts
    no more of them and was written after the item in question.
    """

    dropped: NDArray[np.uint32]
    certain_serial: int
    dropped_all_known: bool

    @classmethod
    def of(cls, dropped: NDArray[np.uint32], steps: _Records, state: State) -> _StepNumbering:
        if len(dropped) and not (dropped[:-1] < dropped[1:]).all():
            raise RunFileDamagedError("the DROPPED_STEPS block of the run file is not ascending")
        serials = steps.items["serial"].astype(np.int64)
        dropped_below = np.searchsorted(dropped, steps.items["serial"])
        full = serials - dropped_below == steps.first + np.arange(len(serials))
        certain = max(int(dropped[-1]) if len(dropped) else -1, int(serials[full].max(initial=-1)))
        return cls(dropped, certain, len(dropped) >= state.step_drops)

    def is_certain(self, serials: NDArray[np.uint32], items_before_state: int) -> NDArray[np.bool_]:
        """Whether the index of each step is certain.

        Args:
            serials: the steps of some items of a log, in the order of that log.
            items_before_state: how many of those items were there when STATE was written.
        """
        certain: NDArray[np.bool_] = serials.astype(np.int64) <= self.certain_serial
        certain |= serials == NONE
        if self.dropped_all_known:
            certain[: max(0, items_before_state)] = True
        return certain

    def indices(self, serials: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The index of each step; -1 for none and for one that was dropped."""
        below = np.searchsorted(self.dropped, serials)
        at = np.searchsorted(self.dropped, serials, side="right")
        return np.where((serials == NONE) | (at > below), -1, serials.astype(np.int64) - below)

    def index(self, serial: int) -> int | None:
        """The index of a step that STATE names: -1 for a dropped one, None when not certain."""
        if not (self.dropped_all_known or serial <= self.certain_serial):
            return None
        return int(self.indices(np.array([serial], dtype=np.uint32))[0])


def _document(
    blocks: Blocks, block_type: BlockType, decode: Callable[[bytes], _Item]
) -> _Item | None:
    data = blocks.documents.get(block_type)
    return None if data is None else decode(data)


def _log(
    blocks: Blocks, block_type: BlockType, decode: Callable[[memoryview], list[_Item]]
) -> list[_Item]:
    items: list[_Item] = []
    for block in blocks.logs.get(block_type, []):
        if block.first != len(items):
            break
        items += decode(block.payload)
    return items


def _records(
    blocks: Blocks, block_type: BlockType, dtype: np.dtype[Any], oldest_dropped: int | None = None
) -> _Records:
    """The items of a log of equal items.

    Args:
        oldest_dropped: how many of the oldest items made room for others, as far as STATE knows.
            Later ones may have, but where blocks are damaged, or lie empty between others, those
            may be the oldest of this log. None for a log that keeps all.
    """
    log = blocks.logs.get(block_type, [])
    first = log[0].first if log else 0
    lost_first = first > 0 if oldest_dropped is None else first > oldest_dropped
    if lost_first and (oldest_dropped is None or not blocks.intact):
        return _Records(0, np.empty(0, dtype))
    if first > _INDEX_LIMIT:
        raise RunFileDamagedError(f"a {block_type.name} block of the run file begins at {first}")
    payloads = []
    count = 0
    for block in log:
        if block.first != first + count:
            break
        items, rest = divmod(len(block.payload), dtype.itemsize)
        if rest:
            raise RunFileDamagedError(
                f"a {block_type.name} block of the run file ends in the middle of an item: "
                f"it has {len(block.payload)} bytes for items of {dtype.itemsize}"
            )
        payloads.append(block.payload)
        count += items
    return _Records(first, np.frombuffer(b"".join(payloads), dtype))


def _known_paths(paths: NDArray[np.void], names: int) -> NDArray[np.void]:
    parents_stand_before = (paths["parent"] == NONE) | (paths["parent"] < np.arange(len(paths)))
    if not parents_stand_before.all():
        raise RunFileDamagedError(
            "a path of the run file has a parent that does not stand before it"
        )
    return paths[: true_prefix(paths["name"] < names)]


def _steps(
    records: _Records, numbering: _StepNumbering, threads: int, state_steps: int
) -> NDArray[np.void]:
    items = records.items
    serials = items["serial"]
    indices = numbering.indices(serials)
    good = true_prefix(
        numbering.is_certain(serials, state_steps - records.first)
        & (indices >= 0)
        & (np.diff(indices, prepend=-1) > 0)
        & (items["thread"] < threads)
        & (items["begin_ns"] >= 0)
        & (items["end_ns"] >= items["begin_ns"])
        & ~np.isinf(items["samples"])
    )
    items = items[:good]
    steps = np.empty(good, STEP_DTYPE)
    for column in ("thread", "begin_ns", "end_ns", "samples", "items"):
        steps[column] = items[column]
    steps["index"] = indices[:good]
    steps["complete"] = items["flags"] & STEP_COMPLETE
    return steps


def _spans(
    records: _Records,
    numbering: _StepNumbering,
    path_names: NDArray[np.uint32],
    threads: int,
    state_spans: int,
) -> tuple[NDArray[np.void], NDArray[np.int64]]:
    spans = np.empty(len(records.items), SPAN_DTYPE)
    self_ns = np.empty(len(spans), np.int64)
    for begin in range(0, len(spans), _STRETCH):
        items = records.items[begin : begin + _STRETCH]
        host_begin_ns = np.ascontiguousarray(items["host_begin_ns"])
        duration_ns = items["host_end_ns"] - host_begin_ns
        own_ns = np.ascontiguousarray(items["self_ns"])
        serials = np.ascontiguousarray(items["step"])
        good = true_prefix(
            numbering.is_certain(serials, state_spans - records.first - begin)
            & (items["path"] < len(path_names))
            & (items["thread"] < threads)
            & (host_begin_ns >= 0)
            & (duration_ns >= 0)
            & (own_ns >= -1)
            & (own_ns <= duration_ns)
        )
        items = items[:good]
        stretch = spans[begin : begin + good]
        for column in ("host_begin_ns", "host_end_ns", "path", "thread", "depth", "flags"):
            stretch[column] = items[column]
        stretch["phase"] = path_names[items["path"]]
        stretch["step"] = numbering.indices(serials[:good])
        for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
            stretch[column] = -1
        self_ns[begin : begin + good] = own_ns[:good]
        if good < len(serials):
            return spans[: begin + good], self_ns[: begin + good]
    return spans, self_ns


def _syncs(
    blocks: Blocks,
    numbering: _StepNumbering,
    steps: NDArray[np.void],
    paths: int,
    threads: int,
    state: State,
) -> Syncs:
    statistics = _document(blocks, BlockType.SYNC_STATISTICS, sync_codec.decode_statistics)
    if statistics is None:
        return Syncs()
    sites = _log(blocks, BlockType.SYNC_SITES, sync_codec.decode_sites)
    log = _records(blocks, BlockType.SYNCS, SYNC_ITEM, oldest_dropped=_INDEX_LIMIT)
    items = log.items
    good = true_prefix(
        (items["site"] < len(sites))
        & ((items["path"] < paths) | (items["path"] == NONE))
        & (items["thread"] < threads)
        & (items["begin_ns"] >= 0)
        & (items["duration_ns"] >= -1)
    )
    items = items[:good]
    events = np.empty(good, SYNC_DTYPE)
    for column in ("begin_ns", "duration_ns", "bytes", "site", "thread"):
        events[column] = items[column]
    events["path"] = np.where(items["path"] == NONE, -1, items["path"].astype(np.int64))
    events["step"] = numbering.indices(items["step"])
    if len(steps):
        # A step may turn out to have ended before what went on while nobody knew.
        position = np.minimum(np.searchsorted(steps["index"], events["step"]), len(steps) - 1)
        is_its = steps["index"][position] == events["step"]
        events["step"][is_its & (events["begin_ns"] >= steps["end_ns"][position])] = -1
    newer = totals_of(events[max(0, statistics.events - log.first) :], len(sites))
    counted = []
    for number, site in enumerate(sites):
        known, added = statistics.totals.get(number, SyncTotals()), newer[number]
        sums = [a + b for a, b in zip(astuple(known), astuple(added), strict=True)]
        counted.append(replace(site, totals=SyncTotals(*sums)))
    # A watch that was still on lasts as long as the run is known.
    watched = tuple((b, state.now_ns if e < 0 else e) for b, e in statistics.watched_ns)
    missing = statistics.dropped + log.first + max(0, statistics.events - log.first - good)
    return Syncs(tuple(counted), events, watched, statistics.is_as_if, missing)


def _metrics(
    records: _Records, numbering: _StepNumbering, names: int, state_metrics: int
) -> NDArray[np.void]:
    items = records.items
    items = items[: true_prefix((items["name"] < names) & (items["host_ns"] >= 0))]
    serials = np.ascontiguousarray(items["step"])
    certain = numbering.is_certain(serials, state_metrics - records.first)
    metrics = np.empty(len(items), METRIC_DTYPE)
    for column in ("update", "host_ns", "name", "value"):
        metrics[column] = items[column]
    metrics["step"] = np.where(certain, numbering.indices(serials), -1)
    return metrics


def _with_blocked(phases: _Phases, spans: NDArray[np.void]) -> _Phases:
    """The statistics with blocked times, where those of all spans of a path are known."""
    known = spans[spans["blocked_ns"] >= 0]
    scopes, blocked_ns = span_scopes(known), known["blocked_ns"]
    no_device_ns = np.full(len(known), -1, np.int64)
    blocked = fold_spans(known["path"], scopes, blocked_ns, blocked_ns, no_device_ns)
    return {
        key: replace(phase, blocked=blocked[key].host)
        if key in blocked and blocked[key].count == phase.count
        else phase
        for key, phase in phases.items()
    }


def _fold_newer_spans(
    statistics: StatisticsDocument, records: _Records, spans: NDArray[np.void]
) -> _Phases:
    begin = max(0, statistics.spans - records.first)
    newer = records.items[begin : len(spans)]
    folded = fold_spans(
        newer["path"],
        span_scopes(spans[begin:]),
        newer["host_end_ns"] - newer["host_begin_ns"],
        newer["self_ns"],
        np.full(len(newer), -1, np.int64),
    )
    return _merged(statistics.phases, folded)


def _fold_newer_device_times(
    statistics: StatisticsDocument,
    phases: _Phases,
    first: int,
    times: DeviceTimes,
    spans: NDArray[np.void],
    state: State,
) -> tuple[_Phases, int]:
    """The statistics with the device times that came after them, and how many could not be
    counted."""
    newer = times.number + first >= statistics.device_times
    members = times.span[newer]
    known = members[times.device_ns[members] >= 0]
    unknown_ns = np.full(len(known), -1, np.int64)
    folded = fold_spans(
        spans["path"][known],
        span_scopes(spans[known]),
        unknown_ns,
        unknown_ns,
        times.device_ns[known],
    )
    written = max(state.device_times, first + times.kept)
    uncounted = max(0, written - statistics.device_times) - len(members)
    return _merged(phases, folded), uncounted


def _merged(phases: _Phases, newer: _Phases) -> _Phases:
    both = dict(phases)
    for key, phase in newer.items():
        both[key] = PhaseStatistics.merge([both[key], phase]) if key in both else phase
    return both


def _mark_unfinished(
    spans: NDArray[np.void], first_span: int, times: DeviceTimes, first_time: int, state: State
) -> None:
    """Mark the spans that STATE knows and of whose device time it can be shown that it was not
    known then: no time was dropped, lost or given up."""
    given_up = state.dropped.get("device_failed", 0)
    if first_time or times.orphans or given_up or times.kept < state.device_times:
        return
    known_to_state = spans[: max(0, state.spans - first_span)]
    waiting = (known_to_state["flags"] & SpanFlag.DEVICE) != 0
    waiting[times.span[times.span < len(waiting)]] = False
    known_to_state["flags"][waiting] |= np.uint32(SpanFlag.DEVICE_UNFINISHED)


def _pending_device_work(device: DeviceState | None, paths: Sequence[str]) -> dict[str, int]:
    if device is None:
        return {}
    return {paths[path]: spans for path, spans in device.pending if path < len(paths) and spans}


def _note_missing(notes: list[str], what: str, records: _Records, kept: int, written: int) -> None:
    if records.first:
        notes.append(f"of the history, {records.first:,} {what} made room for newer ones")
    missing = max(written, records.first + len(records.items)) - records.first - kept
    if missing > 0:
        notes.append(f"missing at the end of the history: {missing:,} {what}")


def _last_end(ends_ns: NDArray[np.int64]) -> int:
    return int(ends_ns.max(initial=0))


def _open_step(
    state: OpenStepState | None, numbering: _StepNumbering, steps: _Records, threads: int
) -> Step | None:
    if state is None or state.thread >= threads:
        return None
    if len(steps.items) and state.serial <= steps.items["serial"][-1]:
        return None  # it was closed after STATE was written
    index = numbering.index(state.serial)
    if index is None or index < 0:
        return None
    return Step(index, state.begin_ns, -1, state.samples, state.items, False, state.thread)


def _open_phases(
    states: Sequence[OpenPhaseState], paths: Sequence[str], numbering: _StepNumbering, threads: int
) -> Iterator[OpenPhase]:
    for state in states:
        step = -1 if state.step_serial < 0 else numbering.index(state.step_serial)
        if step is not None and state.path < len(paths) and state.thread < threads:
            yield OpenPhase(paths[state.path], state.thread, state.begin_ns, step, state.depth)
