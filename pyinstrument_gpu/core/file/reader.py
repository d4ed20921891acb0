# SPDX-License-Identifier: Apache-2.0
"""The run file as a run: what its blocks say together, and what is missing.

Everything read is checked: a damaged file gives less, or an error, but never a wrong number.
History comes out as a prefix of what was written. Statistics are those of the newest STATISTICS
document plus what the history holds beyond it; both are exact, so nothing is counted twice.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.file import known_collectives
from pyinstrument_gpu.aspects.energy.file import decode_energy
from pyinstrument_gpu.aspects.memory.file import decode_memory
from pyinstrument_gpu.aspects.modules.file import take_modules_out
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.aspects.operations.file import decode_operations
from pyinstrument_gpu.aspects.readings.file import known_metrics
from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.aspects.stalls.file import decode_stalls
from pyinstrument_gpu.core.file.blocks import INDEX_LIMIT, Blocks, BlockType
from pyinstrument_gpu.core.file.device_clocks import known_clocks
from pyinstrument_gpu.core.file.device_times import apply_device_times, mark_unfinished
from pyinstrument_gpu.core.file.environment import decode_environment
from pyinstrument_gpu.core.file.framing import read_blocks, read_blocks_of
from pyinstrument_gpu.core.file.items import (
    DEVICE_CLOCK_ITEM,
    DEVICE_TIME_ITEM,
    DROPPED_STEP_ITEM,
    METRIC_ITEM,
    SPAN_ITEM,
    STEP_ITEM,
    STEP_PROFILED,
    STREAM_ITEM,
)
from pyinstrument_gpu.core.file.names import LogTables
from pyinstrument_gpu.core.file.spans import known_spans
from pyinstrument_gpu.core.file.state import DeviceState, OpenPhaseState, State, decode_state
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
    module_step_weights,
)
from pyinstrument_gpu.core.file.syncs import known_syncs
from pyinstrument_gpu.core.open_phase import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times, span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.step_totals import fold_steps, no_steps
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.stream import named_streams
from pyinstrument_gpu.core.syncs import blocked_ns
from pyinstrument_gpu.errors import RunFileError

_Run = TypeVar("_Run", bound=Run)
_Part = TypeVar("_Part")

_KNOWN_TYPES = frozenset(BlockType)


def load(path: str | os.PathLike[str], run_type: type[_Run]) -> _Run:
    try:
        # Not numpy.fromfile, which needs two free descriptors.
        with open(path, "rb", buffering=0) as file:
            return decode_blocks(read_blocks_of(file), run_type)
    except RunFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None


def decode(data: bytes | bytearray | memoryview, run_type: type[_Run]) -> _Run:
    """The run in the bytes of a run file; errors as in `Run.load`."""
    return decode_blocks(read_blocks(data), run_type)


def decode_blocks(blocks: Blocks, run_type: type[_Run]) -> _Run:
    """The run in the blocks of a run file. Where only the newest blocks of its history were taken,
    it has that much of the history, and its statistics are those of the whole run.

    Raises:
        RunFileDamagedError: nothing true can be read from them.
    """
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
    names, threads, metric_names = tables.names, tables.threads, tables.metric_names
    paths = tables.paths
    dropped_steps = blocks.table(BlockType.DROPPED_STEPS, DROPPED_STEP_ITEM).items
    stream_items = blocks.table(BlockType.STREAMS, STREAM_ITEM).items
    streams = named_streams(stream_items[["device", "handle"]].tolist())
    clocks = known_clocks(blocks.table(BlockType.DEVICE_CLOCKS, DEVICE_CLOCK_ITEM).items)
    metric_records = blocks.table(BlockType.METRICS, METRIC_ITEM)
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
    metrics = known_metrics(metric_records, numbering, len(metric_names), state)
    times = apply_device_times(time_records.items, spans, span_records.first, streams, clocks)
    mark_unfinished(spans, span_records.first, times, time_records.first, state)

    for block_type, what, records, kept, written in (
        (BlockType.SPANS, "spans", span_records, len(spans), state.spans),
        (BlockType.STEPS, "steps", step_records, len(steps), state.steps),
        (BlockType.DEVICE_TIMES, "device times", time_records, times.kept, state.device_times),
        (BlockType.METRICS, "values of metrics", metric_records, len(metrics), state.metrics),
    ):
        if records.first and block_type not in blocks.shortened:
            notes.append(
                f"the oldest {records.first:,} {what} were removed from the history to make room"
            )
        missing = max(written, records.first + len(records.items)) - records.first - kept
        if missing > 0:
            notes.append(f"missing at the end of the history: {missing:,} {what}")
    if times.orphans:
        notes.append(
            f"{times.orphans:,} device times were left out: their spans or streams are lost"
        )
    if times.unplaced:
        notes.append(
            f"{times.unplaced:,} device times have no position on the time axis: the clock of "
            "their device was never compared with the host's"
        )

    def apart(
        block_type: BlockType, what: str, decode: Callable[[bytes], tuple[_Part, int]]
    ) -> _Part | None:
        """A document that the rest of the run does not rest on; None, with a note, where it is
        damaged. `decode` also gives how many of its parts make no sense."""
        try:
            part, left_out = blocks.document(block_type, decode) or (None, 0)
        except RunFileError as error:
            notes.append(f"{what} was left out: {error}")
            return None
        if left_out:
            notes.append(f"{left_out:,} parts of {what} were left out, because they make no sense")
        return part

    if statistics is None:
        statistics = StatisticsDocument(0, 0, 0, no_steps(), {})
        notes.append("the statistics cover only the spans and steps that are in the file")
    operations = apart(
        BlockType.OPERATIONS, "what was profiled", lambda data: (decode_operations(data), 0)
    )
    if operations is not None:
        notes += operations.notes
    windows = Operations() if operations is None else operations
    flags = step_records.items["flags"][: len(steps)]
    windows = windows.with_profiled(steps["index"][flags & STEP_PROFILED != 0])
    if operations is None and windows.profiled:
        notes.append(
            "what torch.profiler saw is missing; the steps that it slowed are counted apart"
        )
    elif operations is None and statistics.profiled_totals.count:
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
    profiled = windows.were_profiled(newer_steps["index"])
    operations = windows if windows.profiled else operations
    step_totals = statistics.step_totals + fold_steps(newer_steps[~profiled])
    profiled_totals = statistics.profiled_totals + fold_steps(newer_steps[profiled])
    scopes = span_scopes(spans, windows.were_profiled(spans["step"]))
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
            f"the last {late:,} steps ended after the last sign of life: the statistics may lack "
            "some of their phases"
        )

    syncs = known_syncs(blocks, numbering, steps, len(paths), len(threads), state)
    if syncs.was_watched:
        spans["blocked_ns"] = blocked_ns(spans, syncs)
    kinds = tables.path_kinds
    last_ends_ns = (column.max(initial=0) for column in (spans["host_end_ns"], steps["end_ns"]))
    duration_ns = max(state.now_ns, *map(int, last_ends_ns))
    anchor = environment.get("anchor", {})
    memory = apart(
        BlockType.MEMORY,
        "what was noted of memory",
        lambda data: decode_memory(data, paths, numbering, anchor),
    )
    if memory is not None:
        notes += memory.notes
    energy = apart(
        BlockType.ENERGY, "what was noted of energy", lambda data: decode_energy(data, anchor)
    )
    collectives = apart(
        BlockType.COLLECTIVE_GROUPS,
        "what was noted of collective operations",
        lambda data: known_collectives(data, blocks, state),
    )
    if collectives is not None:
        notes += collectives.notes
    stalls = apart(
        BlockType.STALLS,
        "what was noted of stalls",
        lambda data: decode_stalls(data, paths, len(threads)),
    )
    open_step = known_open_step(state.open_step, numbering, step_records, steps, len(threads))
    if not state.final:
        notes.append(
            "the recording was not stopped: the process ended before that or is still running; its "
            f"last sign of life was at {state.now_ns / 1e9:.3f} s"
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
        device_timing=None if state.device is None else state.device.timing,
        pending_device_work=_pending_device_work(state.device, paths, kinds),
        steps=Steps.with_open(steps, open_step),
        module_step_weights=module_step_weights(step_records.items[: len(steps)]),
        metric_names=metric_names,
        metrics=metrics,
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
        error=state.error,
        syncs=syncs,
        operations=operations,
        memory=memory,
        energy=energy or (),
        stalls=_with_device_events(stalls or (), spans),
        collectives=None if collectives is None else collectives.collectives,
    )
    if kinds.any():
        take_modules_out(columns, kinds)
    return run_type(**columns)


def _pending_device_work(
    device: DeviceState | None, paths: Sequence[str], kinds: NDArray[np.uint32]
) -> dict[str, int]:
    if device is None:
        return {}
    return {
        paths[path]: spans
        for path, spans in device.pending
        if path < len(paths) and spans and kinds[path] == 0
    }


def _with_device_events(stalls: Sequence[Stall], spans: NDArray[np.void]) -> list[Stall]:
    """The stalls, each with the newest end on a device that is known to lie before it was
    noticed."""
    ends_ns = spans["device_end_ns"][has_device_times(spans)] if stalls else np.empty(0, np.int64)
    known = []
    for stall in stalls:
        before_ns = ends_ns[ends_ns <= stall.noticed_ns]
        end_ns = int(before_ns.max()) if len(before_ns) else None
        known.append(replace(stall, device_event_ns=end_ns))
    return known


def _open_phases(
    states: Sequence[OpenPhaseState], paths: Sequence[str], numbering: StepNumbering, threads: int
) -> Iterator[OpenPhase]:
    for state in states:
        step = -1 if state.step_serial < 0 else numbering.index(state.step_serial)
        if step is not None and state.path < len(paths) and state.thread < threads:
            yield OpenPhase(paths[state.path], state.thread, state.begin_ns, step, state.depth)
