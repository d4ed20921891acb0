# SPDX-License-Identifier: Apache-2.0
"""Run files that were damaged: each is refused, or read as a true part of what was recorded."""

import random
from collections.abc import Callable
from functools import cache

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.collectives.data import Collectives
from pyinstrument_gpu.core.file.framing import SLOT_BYTES, SLOTS_OFFSET
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope
from pyinstrument_gpu.errors import RunFileError
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.made_recording import OPERATIONS, Recording, merged
from tests.helpers.run_truth import assert_true_spans

FAULTS = FaultGroup("damaged file")

Damage = Callable[[bytearray, Recording, random.Random], None]
DAMAGES: list[Damage] = []


@cache
def recordings() -> list[Recording]:
    """The last one is so short of room that the oldest history makes room for the newest."""
    return [
        Recording(seed=1),
        Recording(seed=2, ticks=7),
        Recording(seed=3, ticks=16, max_slots=20),
    ]


def damage(done: str) -> Callable[[Damage], Damage]:
    """Adds a row: a file damaged like this, and in three of ten trials in another way as well."""

    def add(damage: Damage) -> Damage:
        def check(trial: Trial) -> str:
            return _check_damaged(trial, damage)

        check.__name__ = damage.__name__
        DAMAGES.append(damage)
        FAULTS.fault(
            done=done,
            holds="It is refused with a `RunFileError`, or what it gives is a true part of what "
            "was recorded: spans, steps, device times, collective operations and stalls as they "
            "were, and statistics as they were at some moment.",
            times=15,
            thorough_times=35,
            slow_times=2950,
            at_least={"read": 0.4},  # most damage leaves something to read
        )(check)
        return damage

    return add


@damage("A file is cut off at any byte.")
def truncated(data: bytearray, recording: Recording, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


@damage("One to eight bits of a file are flipped, half of them in the headers of blocks.")
def bits_flipped(data: bytearray, recording: Recording, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        # Half of them in headers, which are small.
        begin = _slot_offset(data, rng) if rng.random() < 0.5 else 0
        end = begin + 48 if begin else len(data)
        data[rng.randrange(begin, end)] ^= 1 << rng.randrange(8)


@damage("A range of a file is zero, up to three blocks long.")
def range_zeroed(data: bytearray, recording: Recording, rng: random.Random) -> None:
    begin = rng.choice((_slot_offset(data, rng), rng.randrange(len(data))))
    end = min(len(data), begin + rng.choice((SLOT_BYTES, rng.randrange(1, 3 * SLOT_BYTES))))
    data[begin:end] = bytes(end - begin)


@damage("Two blocks of a file change places.")
def slots_swapped(data: bytearray, recording: Recording, rng: random.Random) -> None:
    first, second = _slot_offset(data, rng), _slot_offset(data, rng)
    kept = _slot(data, first)
    _put(data, first, _slot(data, second))
    _put(data, second, kept)


@damage("A block of a file is overwritten with another one of it.")
def slot_of_another_slot(data: bytearray, recording: Recording, rng: random.Random) -> None:
    _put(data, _slot_offset(data, rng), _slot(data, _slot_offset(data, rng)))


@damage("A block of a file is that of another run.")
def slot_of_another_run(data: bytearray, recording: Recording, rng: random.Random) -> None:
    other = rng.choice([other for other in recordings() if other is not recording])
    offset = _slot_offset(data, rng)
    _put(data, offset, _slot(other.final, offset))


@damage("One to three blocks of a file are as they were some time earlier.")
def slot_of_an_older_version(data: bytearray, recording: Recording, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 3)):
        offset = _slot_offset(data, rng)
        _put(data, offset, _slot(rng.choice(recording.versions), offset))


@damage("From some byte on, a file is as it was some time earlier.")
def rest_of_an_older_version(data: bytearray, recording: Recording, rng: random.Random) -> None:
    offset = rng.randrange(len(data))
    data[offset:] = rng.choice(recording.versions)[offset:]


@damage("Up to some byte, a file is as it was some time earlier.")
def start_of_an_older_version(data: bytearray, recording: Recording, rng: random.Random) -> None:
    offset = rng.randrange(len(data))
    start = rng.choice(recording.versions)[:offset]
    data[: len(start)] = start


@damage("Random bytes follow the end of a file.")
def garbage_appended(data: bytearray, recording: Recording, rng: random.Random) -> None:
    data += rng.randbytes(rng.randrange(1, 2 * SLOT_BYTES))


@FAULTS.fault(
    done="A file is cut off at every 20011th byte in turn.",
    holds="It loads, and each longer part gives at least the spans of the shorter one.",
)
def every_length(trial: Trial) -> None:
    recording = recordings()[0]
    spans_before = -1
    for length in range(SLOTS_OFFSET, len(recording.final), 20011):
        run = Run.from_bytes(recording.final[:length])
        _assert_true_part(run, recording)
        assert len(run.spans) >= spans_before
        spans_before = len(run.spans)


def _check_damaged(trial: Trial, damage: Damage) -> str:
    rng = trial.random
    recording = rng.choice(recordings())
    data = bytearray(rng.choice((recording.final, *recording.versions)))
    damage(data, recording, rng)
    if rng.random() < 0.3 and len(data) > SLOTS_OFFSET + SLOT_BYTES:
        rng.choice(DAMAGES)(data, recording, rng)
    try:
        run = Run.from_bytes(data)
    except RunFileError:
        return "refused"
    _assert_true_part(run, recording)
    return "read"


def _assert_true_part(run: Run, recording: Recording) -> None:
    assert list(run.names) == recording.names[: len(run.names)]
    assert list(run.threads) == recording.threads[: len(run.threads)]
    paths = list(zip(run.path_parents.tolist(), run.path_names.tolist(), strict=True))
    assert paths == recording.paths[: len(paths)]

    first_span = _position(recording.spans["host_begin_ns"], run.spans["host_begin_ns"])
    end_span = first_span + len(run.spans)
    assert_true_spans(run, recording, first_span, end_span)

    closed = run.steps.array[run.steps.array["end_ns"] >= 0]
    first_step = _position(recording.steps["begin_ns"], closed["begin_ns"])
    end_step = first_step + len(closed)
    assert closed.tobytes() == recording.steps[first_step:end_step].tobytes()
    if recording is not recordings()[-1]:
        assert (first_span, first_step) == (0, 0)

    if run.open_step is not None:
        _assert_true_open_step(run, recording)
    for phase in run.open_phases:
        assert phase.path in run.paths
        assert phase.step == (run.open_step.index if run.open_step is not None else phase.step)

    known = np.zeros(len(recording.spans), np.bool_)
    known[first_span:end_span] = run.span_device_ns >= 0
    device_times = np.flatnonzero(known[recording.timed_spans])
    watermarks = [(0, 0, 0), *recording.watermarks]
    assert any(
        _statistics_agree(
            run,
            merged(
                _reference(recording, spans, first_span, end_span),
                _device_reference(recording, times, device_times),
            ),
        )
        for spans, _, times in watermarks
    ), "statistics"
    assert any(
        run.step_totals == recording.fold_steps(_counted(steps, first_step, end_step))
        for _, steps, _ in watermarks
    ), "step totals"
    _assert_unfinished_as_state_says(run, recording, first_span)
    _assert_true_collectives(run, recording)
    # Without its path, where that is lost.
    stalls = {*recording.stalls, *(replace(one, paths=()) for one in recording.stalls)}
    assert {replace(one, device_event_ns=None) for one in run.stalls} <= stalls


def _assert_true_collectives(run: Run, recording: Recording) -> None:
    found, truth = run.collectives, recording.collectives
    assert found.groups == tuple(recording.groups[: len(found.groups)])
    assert found.operations in ((), OPERATIONS)
    first = _position(truth["created_ns"], found.events["created_ns"])
    assert found.events.tobytes() == truth[first : first + len(found.events)].tobytes()
    (state,) = (one for one in (*recording.states, State()) if one.anchor == run.anchor)
    if found.was_read:
        assert found.missed >= first
        assert found.missed + len(found.events) >= state.collectives
    else:
        assert found == Collectives()


def _assert_unfinished_as_state_says(run: Run, recording: Recording, first: int) -> None:
    (state,) = (one for one in (*recording.states, State()) if one.anchor == run.anchor)
    marked = (run.spans["flags"] & SpanFlag.DEVICE_UNFINISHED) != 0
    given_up = recording.spans["flags"][first : first + len(marked)] & SpanFlag.DEVICE_UNFINISHED
    unfinished = first + np.flatnonzero(marked & (given_up == 0))
    assert not np.isin(unfinished, recording.timed_spans[: state.device_times]).any()
    assert (unfinished < state.spans).all()


def _assert_true_open_step(run: Run, recording: Recording) -> None:
    assert run.open_step is not None
    assert run.steps[-1] == run.open_step
    begun = recording.steps["begin_ns"] == run.open_step.begin_ns
    # One that was open in an older version may have been dropped later.
    for step in recording.steps[begun]:
        assert (step["index"], step["thread"]) == (run.open_step.index, run.open_step.thread)


def _statistics_agree(run: Run, expected: dict[tuple[int, Scope], PhaseStatistics]) -> bool:
    known = {key: phase for key, phase in expected.items() if key[0] < len(run.paths)}
    return dict(run.statistics) == known


def _reference(
    recording: Recording, watermark: int, first: int, end: int
) -> dict[tuple[int, Scope], PhaseStatistics]:
    return _folded(
        recordings().index(recording), watermark, max(watermark, first), max(end, watermark)
    )


def _device_reference(
    recording: Recording, watermark: int, retained: NDArray[np.intp]
) -> dict[tuple[int, Scope], PhaseStatistics]:
    newer = retained[retained >= watermark]
    return _folded_device_times(recordings().index(recording), watermark, newer.tobytes())


@cache
def _folded_device_times(
    recording: int, watermark: int, newer: bytes
) -> dict[tuple[int, Scope], PhaseStatistics]:
    numbers = np.append(np.arange(watermark), np.frombuffer(newer, np.intp))
    return recordings()[recording].fold_device_times(numbers)


@cache
def _folded(
    recording: int, watermark: int, first: int, end: int
) -> dict[tuple[int, Scope], PhaseStatistics]:
    return recordings()[recording].fold(_counted(watermark, first, end))


def _counted(watermark: int, first: int, end: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The items that statistics cover: those below the watermark, and the retained ones above."""
    newer = range(max(watermark, first), max(end, watermark))
    return np.array([*range(watermark), *newer], dtype=np.intp)


def _position(
    everything: np.ndarray[tuple[int], np.dtype[np.int64]],
    part: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> int:
    """Where a part of a column begins; 0 when it is empty."""
    return int(np.flatnonzero(everything == part[0])[0]) if len(part) else 0


def _slot_offset(data: bytes | bytearray, rng: random.Random) -> int:
    return SLOTS_OFFSET + rng.randrange((len(data) - SLOTS_OFFSET) // SLOT_BYTES) * SLOT_BYTES


def _slot(data: bytes | bytearray, offset: int) -> bytes:
    return bytes(data[offset : offset + SLOT_BYTES])


def _put(data: bytearray, offset: int, slot: bytes) -> None:
    data[offset : offset + SLOT_BYTES] = slot.ljust(SLOT_BYTES, b"\0")
