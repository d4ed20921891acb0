# SPDX-License-Identifier: Apache-2.0
"""PyTorch's flight recorder: the last collective operations of this process.

Torch notes them in a ring, in C++ and whoever asks for them, DistributedDataParallel included. What
it gives is a pickle of plain objects, here without stack traces: to make them can need the GIL of a
process that hangs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

MOST_ENTRIES = 20_000
"""A dump holds the GIL for some 15 us per entry, so longer rings are not read."""

_MOST_DIGITS = 20
SIZE_VARIABLES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Of the environment, each of which says how many entries the ring has."""
_DUMPS = ("_dump_nccl_trace", "_dump_fr_trace")
_ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("Short", "UInt16", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "UInt32", "Float", "QInt32", "ComplexHalf"), 4),
    **dict.fromkeys(("Long", "UInt64", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}


class FlightRecorderError(Exception):
    """The flight recorder can't be read."""


class Entry(NamedTuple):
    """An operation in the ring. Times are ns of the wall clock; None unknown.

    Attributes:
        record: its number, counted by the process.
        number, group, description: of its process group: torch's number in this process, and names.
        sequence: in its group, where operations point to point count apart.
        operation, backend: "all_reduce" and "gloo".
        size: of its data in bytes, those of the inputs or of the outputs, whichever are more.
        duration_ns: by the device's clock.
        is_done: whether torch has seen its end, or does not look for it any more.
    """

    record: int
    number: str
    group: str
    description: str
    sequence: int
    operation: str
    backend: str
    size: int | None
    created_ns: int | None
    started_ns: int | None
    ended_ns: int | None
    duration_ns: int | None
    is_p2p: bool
    is_done: bool


class GroupStatus(NamedTuple):
    """The progress of a process group: numbers of operations; None unknown."""

    enqueued: int | None
    started: int | None
    completed: int | None


class Dump(NamedTuple):
    """A dump of the flight recorder.

    Attributes:
        entries: by `record`, ascending.
        status: of the groups, by the number that torch gives them.
    """

    entries: list[Entry]
    status: Mapping[str, GroupStatus]


def read() -> Dump:
    """Read the flight recorder as it is now. Holds the GIL for some 15 us per entry.

    Torch has one for NCCL and one for other backends; the first that has operations counts.

    Raises:
        FlightRecorderError: there is none, its ring is too long, or torch has changed what it
            gives.
    """
    dump = Dump([], {})
    for function in dump_functions():
        dump = decode(function(True, False, False))
        if dump.entries:
            break
    return dump


def dump_functions() -> list[Callable[[bool, bool, bool], bytes]]:
    """Return torch's functions that give a pickle; they take whether with entries, with stack
    traces, and only of operations that have not ended.

    Raises:
        FlightRecorderError: as of `read`.
    """
    for variable in SIZE_VARIABLES:
        size = os.environ.get(variable, "")
        if size.isdecimal() and (len(size) > _MOST_DIGITS or int(size) > MOST_ENTRIES):
            raise FlightRecorderError(
                f"{variable}={size[:_MOST_DIGITS]} makes its ring too long to be read beside "
                f"training: at most {MOST_ENTRIES:,}"
            )
        if size == "0":
            raise FlightRecorderError(f"{variable}=0 turns it off")
    module: Any = sys.modules.get("torch._C._distributed_c10d")
    functions = [getattr(module, name) for name in _DUMPS if hasattr(module, name)]
    if not functions:
        raise FlightRecorderError("this torch has no flight recorder")
    return functions


def decode(data: bytes) -> Dump:
    """Decode a pickle of the flight recorder.

    Raises:
        FlightRecorderError: it is none.
    """
    try:
        # Not above: the import of the package need not load pickle, which torch has loaded by now.
        from pyinstrument_gpu.aspects.collectives.plain_pickle import loads

        document = loads(data)
        entries = [_entry(value) for value in document.get("entries", [])]
        status = {str(key): _status(value) for key, value in document.get("pg_status", {}).items()}
    except Exception as error:  # whatever unpickling raises
        raise FlightRecorderError(f"torch gives it in an unknown form: {error!r}") from None
    return Dump(sorted(entries), status)


def _entry(value: Any) -> Entry:
    group, description = value["process_group"]
    backend, _, operation = value["profiling_name"].rpartition(":")
    is_p2p = bool(value["is_p2p"])
    milliseconds = value.get("duration_ms")
    return Entry(
        record=int(value["record_id"]),
        number=str(value.get("pg_id", "")),
        group=str(group),
        description=str(description),
        sequence=int(value["p2p_seq_id" if is_p2p else "collective_seq_id"]),
        # That of an operation point to point goes on with its two ranks.
        operation=operation.partition(" ")[0],
        backend=backend,
        size=_size(value),
        created_ns=_time(value["time_created_ns"]),
        started_ns=_time(value.get("time_discovered_started_ns")),
        ended_ns=_time(value.get("time_discovered_completed_ns")),
        duration_ns=None if milliseconds is None else round(milliseconds * 1e6),
        is_p2p=is_p2p,
        is_done=bool(value.get("retired", True)) or value.get("state") == "completed",
    )


def _time(value: Any) -> int | None:
    return int(value) if value else None


def _size(value: Any) -> int | None:
    sizes = [
        _bytes(value[f"{which}_sizes"], value[f"{which}_dtypes"]) for which in ("input", "output")
    ]
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def _bytes(sizes: Any, dtypes: Any) -> int | None:
    """Return the bytes of some tensors together; None where a type is not known."""
    total = 0
    for shape, dtype in zip(sizes, dtypes, strict=False):
        item = 1 if dtype.startswith("Float8") else _ITEM_BYTES.get(dtype)
        if item is None:
            return None
        for extent in shape:
            item *= extent
        total += item
    return total


def _status(value: Any) -> GroupStatus:
    numbers = [value[f"last_{what}_collective"] for what in ("enqueued", "started", "completed")]
    return GroupStatus(*(int(one) if one >= 0 else None for one in numbers))
