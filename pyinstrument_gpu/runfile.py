# SPDX-License-Identifier: Apache-2.0
"""The run file as a `Run`: what its blocks say together, and what is missing.

Everything read is checked: a damaged file gives less, or an error, but never a wrong number.
History comes out as a prefix of what was written. Statistics are those of the newest STATISTICS
document plus what the history holds beyond it; both are exact, so nothing is counted twice.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.blocks import (
    PAYLOAD_BYTES,
    SLOT_BYTES,
    Blocks,
    BlockType,
    pack_block,
    pack_document_first,
    pack_file_header,
    read_blocks,
    split_items,
)
from pyinstrument_gpu.errors import RunFileDamagedError, RunFileError, RunPathError
from pyinstrument_gpu.payloads import (
    DROPPED_STEP_ITEM,
    NONE,
    PATH_ITEM,
    SPAN_ITEM,
    STEP_COMPLETE,
    STEP_ITEM,
    OpenPhaseState,
    OpenStepState,
    State,
    StatisticsDocument,
    decode_environment,
    decode_names,
    decode_state,
    decode_statistics,
    decode_threads,
    encode_json,
    encode_name,
    encode_state,
    encode_statistics,
    encode_thread,
)
from pyinstrument_gpu.run import (
    SPAN_DTYPE,
    STEP_DTYPE,
    OpenPhase,
    Run,
    Step,
    Steps,
    fold_steps,
    join_paths,
    span_scopes,
)
from pyinstrument_gpu.statistics import PhaseStatistics, Scope, fold_spans

_Item = TypeVar("_Item")

# Spans are converted in stretches whose input and output fit the processor's cache.
_STRETCH = 8192
# No run gets there; sums with it stay within 64 bits.
_INDEX_LIMIT = 1 << 52


def load(path: str | os.PathLike[str]) -> Run:
    """Read a run file; see `Run.load`."""
    try:
        return decode(np.fromfile(path, dtype=np.uint8).data)
    except RunFileError as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None


def save(run: Run, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write a run file; see `Run.save`."""
    target = Path(path)
    if target.exists() and not overwrite:
        raise RunPathError(f"{target} exists already: choose another path or pass overwrite=True")
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        try:
            with open(partial, "xb") as file:
                file.writelines(encode(run))
            os.replace(partial, target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise RunPathError(f"cannot write {target}: {error.strerror}") from error


def decode(data: bytes | bytearray | memoryview) -> Run:
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

    numbering = _StepNumbering.of(dropped_steps, step_records, state)
    steps = _steps(step_records, numbering, len(threads), state.steps)
    spans, span_self_ns = _spans(span_records, numbering, paths["name"], len(threads), state.spans)
    _note_missing(notes, "spans", span_records, len(spans), state.spans)
    _note_missing(notes, "steps", step_records, len(steps), state.steps)

    if statistics is None:
        statistics = StatisticsDocument(0, 0, fold_steps(steps[:0]), {})
        notes.append("the statistics cover only the spans and steps that are in the file")
    step_totals = statistics.step_totals + fold_steps(
        steps[max(0, statistics.steps - step_records.first) :]
    )
    phases = _fold_newer_spans(statistics, span_records, spans)
    counted = sum(phase.count for phase in phases.values())
    if counted < state.phases_recorded:
        notes.append(
            f"the statistics leave out {state.phases_recorded - counted} of the last spans"
        )
    known_phases = {key: phase for key, phase in phases.items() if key[0] < len(paths)}
    if len(known_phases) < len(phases):
        notes.append("the statistics of phases whose names are missing were left out")

    path_parents = np.where(paths["parent"] == NONE, -1, paths["parent"].astype(np.int64))
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
    return Run(
        names=names,
        path_parents=path_parents,
        path_names=paths["name"],
        threads=threads,
        environment=environment,
        dropped=state.dropped,
        spans=spans,
        span_self_ns=span_self_ns,
        steps=Steps.with_open(steps, open_step),
        step_totals=step_totals,
        statistics=known_phases,
        open_phases=tuple(
            _open_phases(
                state.open_phases,
                join_paths(names, path_parents, paths["name"]),
                numbering,
                len(threads),
            )
        ),
        open_step=open_step,
        complete=state.final,
        # A run that was saved keeps its notes; what is found again is not said twice.
        notes=tuple(dict.fromkeys((*state.notes, *notes))),
        duration_ns=duration_ns,
        phases_recorded=max(state.phases_recorded, counted),
        harvester_cpu_ns=state.harvester_cpu_ns,
        anchor=state.anchor,
    )


def encode(run: Run) -> Iterator[bytes]:
    """The bytes of a run file, piece by piece.

    Raises:
        RunFileError: the run holds a number or a name that the format has no room for.
    """
    run_id = secrets.randbits(64)
    yield pack_file_header(run_id)
    for slot, (block_type, sequence, first, payload) in enumerate(_blocks(run)):
        block = pack_block(block_type, run_id, slot, sequence, first, payload)
        yield block.ljust(SLOT_BYTES, b"\0")


# Reading


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
    blocks: Blocks, block_type: BlockType, dtype: np.dtype[Any], oldest_dropped: int = 0
) -> _Records:
    """The items of a log of equal items.

    Args:
        oldest_dropped: how many of the oldest items made room for others, as far as STATE knows.
            Later ones may have, but where blocks are damaged, or lie empty between others, those
            may be the oldest of this log.
    """
    log = blocks.logs.get(block_type, [])
    first = log[0].first if log else 0
    if first > oldest_dropped and not blocks.intact:
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
    return paths[: _true_prefix(paths["name"] < names)]


def _true_prefix(condition: NDArray[np.bool_]) -> int:
    """How many items there are before the first that is false."""
    return len(condition) if condition.all() else int(condition.argmin())


def _steps(
    records: _Records, numbering: _StepNumbering, threads: int, state_steps: int
) -> NDArray[np.void]:
    items = records.items
    serials = items["serial"]
    indices = numbering.indices(serials)
    good = _true_prefix(
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
        good = _true_prefix(
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


def _fold_newer_spans(
    statistics: StatisticsDocument, records: _Records, spans: NDArray[np.void]
) -> dict[tuple[int, Scope], PhaseStatistics]:
    begin = max(0, statistics.spans - records.first)
    newer = records.items[begin : len(spans)]
    folded = fold_spans(
        newer["path"],
        span_scopes(spans[begin:]),
        newer["host_end_ns"] - newer["host_begin_ns"],
        newer["self_ns"],
    )
    phases = dict(statistics.phases)
    for key, phase in folded.items():
        phases[key] = PhaseStatistics.merge([phases[key], phase]) if key in phases else phase
    return phases


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


# Writing


def _blocks(run: Run) -> Iterator[tuple[BlockType, int, int, bytes]]:
    """The blocks of a run: type, sequence, first and payload."""
    yield from _document_blocks(BlockType.ENVIRONMENT, encode_json(run.environment))
    yield from _log_blocks(BlockType.NAMES, [encode_name(name) for name in run.names])
    paths = np.empty(len(run.path_names), PATH_ITEM)
    paths["parent"] = np.where(run.path_parents < 0, NONE, run.path_parents)
    paths["name"] = run.path_names
    yield from _record_blocks(BlockType.PATHS, paths)
    yield from _log_blocks(BlockType.THREADS, [encode_thread(thread) for thread in run.threads])
    closed = run.steps.closed
    yield from _record_blocks(BlockType.STEPS, _step_items(closed))
    yield from _record_blocks(BlockType.SPANS, _span_items(run))
    statistics = StatisticsDocument(len(run.spans), len(closed), run.step_totals, run.statistics)
    yield from _document_blocks(BlockType.STATISTICS, encode_statistics(statistics))
    yield from _document_blocks(BlockType.STATE, encode_state(_state(run, len(closed))))


def _document_blocks(
    block_type: BlockType, content: bytes
) -> Iterator[tuple[BlockType, int, int, bytes]]:
    parts = max(1, -(-len(content) // PAYLOAD_BYTES))
    for part in range(parts):
        payload = content[part * PAYLOAD_BYTES : (part + 1) * PAYLOAD_BYTES]
        yield block_type, 1, pack_document_first(part, parts), payload


def _log_blocks(
    block_type: BlockType, items: Sequence[bytes]
) -> Iterator[tuple[BlockType, int, int, bytes]]:
    first = 0
    for sequence, block in enumerate(split_items(items)):
        yield block_type, sequence, first, b"".join(block)
        first += len(block)


def _record_blocks(
    block_type: BlockType, records: NDArray[np.void]
) -> Iterator[tuple[BlockType, int, int, bytes]]:
    capacity = PAYLOAD_BYTES // records.itemsize
    for sequence, first in enumerate(range(0, len(records), capacity)):
        yield block_type, sequence, first, records[first : first + capacity].tobytes()


def _step_items(steps: NDArray[np.void]) -> NDArray[np.void]:
    items = np.empty(len(steps), STEP_ITEM)
    for column in ("thread", "begin_ns", "end_ns", "samples"):
        items[column] = steps[column]
    items["serial"] = _narrow(steps["index"], NONE, "step index")
    items["items"] = _narrow(steps["items"], NONE + 1, "number of items")
    items["flags"] = np.where(steps["complete"], STEP_COMPLETE, 0)
    return items


def _span_items(run: Run) -> NDArray[np.void]:
    items = np.empty(len(run.spans), SPAN_ITEM)
    for column in ("host_begin_ns", "host_end_ns", "path", "thread", "depth"):
        items[column] = run.spans[column]
    steps = run.spans["step"]
    items["step"] = np.where(steps < 0, NONE, _narrow(np.maximum(steps, 0), NONE, "step index"))
    items["flags"] = _narrow(run.spans["flags"], 1 << 16, "span flags")
    items["self_ns"] = run.span_self_ns
    return items


def _narrow(values: NDArray[Any], limit: int, what: str) -> NDArray[Any]:
    if len(values) and not 0 <= values.min() <= values.max() < limit:
        raise RunFileError(f"a run file holds a {what} of 0 to {limit - 1}, got {values.max()}")
    return values


def _state(run: Run, closed_steps: int) -> State:
    path_ids = {path: number for number, path in enumerate(run.paths)}
    step = run.open_step
    return State(
        now_ns=run.duration_ns,
        final=run.complete,
        anchor=run.anchor,
        spans=len(run.spans),
        steps=closed_steps,
        step_drops=0,
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
        notes=run.notes,
    )
