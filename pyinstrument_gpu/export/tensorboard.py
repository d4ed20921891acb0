# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files of a run that is over; docs/exporters/viewers.md lists the tags.

A file is records of TFRecord (https://www.tensorflow.org/tutorials/load_data/tfrecord): the length
of the data, its checksum, the data, their checksum. The data are an `Event` in the encoding of
protocol buffers, with a `Summary` of one `Value` for each tag
(https://github.com/tensorflow/tensorboard/tree/master/tensorboard/compat/proto).

Events with the same tags differ only in the bytes of their numbers. So they are rows of one matrix
of bytes, and a checksum is taken of a column of it at a time. To write an event object each would
take twenty times as long, and need tensorboard where the run is exported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.paths import labels_of, without_surrogates
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.export.atomic_file import atomic_write
from pyinstrument_gpu.export.phases_by_step import matrix, phases_by_step
from pyinstrument_gpu.export.ranges import slices_of
from pyinstrument_gpu.export.runs import ranks_of
from pyinstrument_gpu.sinks.scalars import GROUPS, MAX_PATHS
from pyinstrument_gpu.sinks.sink import steps_of_metrics

_STEPS_AT_ONCE = 1 << 13

_Bytes: TypeAlias = NDArray[np.uint8]

_VERSION = b"brain.Event:2"

# The keys of fields: 8 times the number of the field, and how it is encoded.
_EVENT_WALL_TIME, _EVENT_STEP, _EVENT_FILE_VERSION, _EVENT_SUMMARY = (
    b"\x09",
    b"\x10",
    b"\x1a",
    b"\x2a",
)
_SUMMARY_VALUE, _VALUE_TAG, _VALUE_SIMPLE_VALUE = b"\x0a", b"\x0a", b"\x15"

_CHUNK_BYTES = 1 << 20


def write(runs: Sequence[Run], folder: Path, *, advance: Callable[[int], None]) -> None:
    """Write one event file per run into a log directory; several runs go to `rank0/` and so on.

    The file bears the id of its run: writing a run again replaces it, and other event files stay.

    Raises:
        ExportError: the directory is a file.
    """
    for run, rank in zip(runs, ranks_of(runs), strict=True):
        target = folder / f"rank{rank}" if len(runs) > 1 else folder
        target.mkdir(parents=True, exist_ok=True)
        with atomic_write(target / _file_name(run)) as sink:
            sink.writelines(_content(run, advance))


def _file_name(run: Run) -> str:
    # TensorBoard knows its files by "tfevents", and reads those of one directory by name.
    began_s = (run.began_realtime_ns or 0) // 1_000_000_000
    run_id = run.environment.get("run_id")
    # As a number: no text of a run takes part in a path.
    name = "run" if run_id is None else f"{int(run_id, 16):016x}"
    return f"events.out.tfevents.{began_s:010d}.{name}"


def _content(run: Run, advance: Callable[[int], None]) -> Iterator[bytes]:
    """The scalars of all steps, and then those of the metrics."""
    yield _head((run.began_realtime_ns or 0) / 1e9)
    curves = _RunScalars(run)
    done = 0
    for some_steps, times, spans in phases_by_step(run, run.steps.closed):
        for rows in slices_of(len(some_steps), _STEPS_AT_ONCE):
            yield from curves.events(some_steps[rows], times)
        advance(spans)
        done += spans
    yield from _metric_events(run)
    advance(len(run.spans) - done)  # those outside steps


class _RunScalars:
    """The tags of a run's steps and phases, each with its values."""

    def __init__(self, run: Run) -> None:
        labels = labels_of(run.paths, MAX_PATHS)
        names = list(dict.fromkeys(labels))
        self._began_ns = run.began_realtime_ns or 0
        self._column_of_path = np.array([names.index(label) for label in labels], np.int64)
        self._columns = len(names)
        self._tags = ["step/time_ms", "step/samples_per_s"]
        self._scopes = [scope for scope in GROUPS if (span_scopes(run.spans) == scope).any()]
        for scope in self._scopes:
            for group in (GROUPS[scope], f"{GROUPS[scope]}_device"):
                self._tags += [f"{group}/{name}" for name in names]

    def events(self, steps: NDArray[np.void], times: NDArray[np.void]) -> Iterator[bytes]:
        """Those of some steps; `times` may be of more."""
        duration_ns = steps["end_ns"] - steps["begin_ns"]
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = steps["samples"] / duration_ns * 1e9
        values = [duration_ns[None] / 1e6, rate[None]]
        is_present = [np.ones((1, len(steps)), np.bool_), np.isfinite(rate)[None]]
        for scope in self._scopes:
            of_scope = times[times["scope"] == scope]
            for ns in matrix(steps, of_scope, self._column_of_path, self._columns):
                values.append(ns / 1e6)
                is_present.append(ns >= 0)
        wall_times = (self._began_ns + steps["end_ns"]) / 1e9
        return _events(
            wall_times,
            steps["index"],
            self._tags,
            np.concatenate(values),
            np.concatenate(is_present),
        )


def _metric_events(run: Run) -> Iterator[bytes]:
    steps = run.steps.closed
    metrics, step = run.metrics, steps_of_metrics(run.metrics, steps["index"], steps["end_ns"])
    began_ns = run.began_realtime_ns or 0
    for number, name in enumerate(run.metric_names):
        places = np.flatnonzero((metrics["name"] == number) & (step >= 0))
        for rows in slices_of(len(places)):
            some = metrics[places[rows]]
            yield from _events(
                (began_ns + some["host_ns"]) / 1e9,
                step[places[rows]],
                [f"metrics/{without_surrogates(name)}"],
                some["value"][None],
                np.ones((1, len(some)), np.bool_),
            )


def _head(wall_time: float) -> bytes:
    """The first event of a file, which names the version."""
    event = _EVENT_WALL_TIME + np.float64(wall_time).astype("<f8").tobytes()
    event += _field(_EVENT_FILE_VERSION, _VERSION)
    return _records(_rows(event, 1))


def _events(
    wall_times: NDArray[np.float64],
    steps: NDArray[np.int64],
    tags: Sequence[str],
    values: NDArray[np.float64],
    is_present: NDArray[np.bool_],
) -> Iterator[bytes]:
    """The events of some steps, each with all tags that have a value in all of them, and then, tag
    by tag, those with another.

    Args:
        wall_times: in seconds.
        steps: from 0 on.
        tags: in UTF-8's range.
        values: a row for each tag; written as 32-bit floats.
        is_present: which of the values there are.
    """
    with np.errstate(over="ignore"):
        numbers = np.ascontiguousarray(values.T, "<f4")
    always = is_present.all(axis=1)
    groups: list[list[int]] = [
        np.flatnonzero(always).tolist(),
        *([tag] for tag in np.flatnonzero(~always).tolist()),
    ]
    for group in groups:
        if not len(group):
            continue
        rows = np.flatnonzero(is_present[group].all(axis=0))
        # The longer the number of a step, the more bytes it takes.
        bits = np.frexp(steps[rows].astype(np.float64))[1]
        lengths = np.maximum(1, (bits + 6) // 7)
        for length in np.unique(lengths).tolist():
            chosen = rows[lengths == length]
            of_group = [tags[tag] for tag in group]
            chunk_rows = max(1, _CHUNK_BYTES // (64 + sum(map(len, of_group))))
            for begin in range(0, len(chosen), chunk_rows):
                part = chosen[begin : begin + chunk_rows]
                of_part = numbers[part][:, group]
                yield _records(
                    _rows_of_events(wall_times[part], steps[part], length, of_group, of_part)
                )


def _rows_of_events(
    wall_times: NDArray[np.float64],
    steps: NDArray[np.int64],
    step_bytes: int,
    tags: Sequence[str],
    values: NDArray[np.float32],
) -> _Bytes:
    """A row of bytes for each event."""
    count = len(steps)
    summary = []
    for position, tag in enumerate(tags):
        value = _field(_VALUE_TAG, tag.encode()) + _VALUE_SIMPLE_VALUE
        before = _SUMMARY_VALUE + _varint(len(value) + 4) + value
        number = np.ascontiguousarray(values[:, position]).view(np.uint8).reshape(count, 4)
        summary += [_rows(before, count), number]
    summary_bytes = sum(part.shape[1] for part in summary)
    shifts = 7 * np.arange(step_bytes)
    step = (steps[:, None] >> shifts & 0x7F).astype(np.uint8)
    step[:, :-1] |= 0x80
    wall = np.ascontiguousarray(wall_times, "<f8").view(np.uint8).reshape(count, 8)
    parts = [
        *(_rows(_EVENT_WALL_TIME, count), wall),
        *(_rows(_EVENT_STEP, count), step),
        *(_rows(_EVENT_SUMMARY + _varint(summary_bytes), count), *summary),
    ]
    return np.hstack(parts)


def _records(data: _Bytes) -> bytes:
    """The rows as records, one after the other."""
    count, length = data.shape
    head = _rows(length.to_bytes(8, "little"), 1)
    prefix = np.hstack([head, _checksums(head)])
    return np.hstack([np.repeat(prefix, count, axis=0), data, _checksums(data)]).tobytes()


def _checksums(rows: _Bytes) -> _Bytes:
    """Of each row the masked CRC-32C, in four bytes."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _CRC_TABLE[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc = ~crc
    masked = (crc >> 15 | crc << 17) + np.uint32(0xA282EAD8)
    checksums: _Bytes = masked.astype("<u4").view(np.uint8).reshape(len(rows), 4)
    return checksums


def _crc_table() -> NDArray[np.uint32]:
    crc = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ np.uint32(0x82F63B78), crc >> 1)
    return crc


_CRC_TABLE = _crc_table()
"""Of CRC-32C, whose polynomial is that of Castagnoli, with its bits in reverse."""


def _rows(same: bytes, count: int) -> _Bytes:
    return np.broadcast_to(np.frombuffer(same, np.uint8), (count, len(same)))


def _field(key: bytes, value: bytes) -> bytes:
    return key + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])
