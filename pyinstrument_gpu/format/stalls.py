# SPDX-License-Identifier: Apache-2.0
"""The STALLS document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyinstrument_gpu.format.blocks import nonsense
from pyinstrument_gpu.format.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.model.stall import GroupProgress, Stall

MOST_STALLS = 8
_MOST_LISTED = 1024
_MOST_NAME = 300
_MOST_TEXT = 1 << 18
_NO_FRAME = "<no Python frame>"
_THREAD = re.compile(r"(?:Current t|T)hread (0x[0-9a-f]{1,16})\b.*\(most recent call first\):")


class StallsDocument(NamedTuple):
    """`left_out` is the number of stalls and of parts of them that make no sense."""

    stalls: tuple[Stall, ...]
    left_out: int


def decode_stalls(data: bytes, paths: Sequence[str], threads: int) -> StallsDocument:
    """What the document says.

    Args:
        paths: of the run.
        threads: how many it has.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    values = JsonObject.decode(data, "STALLS").document.get("stalls", [])
    if not isinstance(values, list):
        raise nonsense("STALLS", "stalls should be a list")
    reader = _Reader(paths, threads)
    stalls = [reader.stall(value) for value in values[:MOST_STALLS]]
    known = tuple(stall for stall in stalls if stall is not None)
    return StallsDocument(known, reader.left_out)


class _Reader:
    """Reads stalls, and counts what makes no sense."""

    def __init__(self, paths: Sequence[str], threads: int) -> None:
        self._paths = paths
        self._threads = threads
        self.left_out = 0

    def stall(self, value: Any) -> Stall | None:
        if not isinstance(value, dict):
            value = {}
        since_ns, noticed_ns, limit_ns = (
            value.get(key) for key in ("since_ns", "noticed_ns", "limit_ns")
        )
        ended_ns, step = value.get("ended_ns"), value.get("step")
        are_times = _is_time(since_ns) and _is_time(noticed_ns) and _is_time(limit_ns)
        if (
            not are_times
            or since_ns > noticed_ns
            or not (ended_ns is None or (_is_time(ended_ns) and ended_ns >= noticed_ns))
            or not (step == -1 or _is_time(step))
        ):
            self.left_out += 1
            return None
        answer = value.get("answer")
        if not isinstance(answer, dict):
            self.left_out += answer is not None
            answer = {}
        stacks = self._rows(answer.get("stacks"), _stack)
        traceback = value.get("traceback")
        # It is of the time when the GIL was not to be had; Python has answered after that.
        if isinstance(traceback, str):
            stacks = _stacks_of(traceback[:_MOST_TEXT]) or stacks
        return Stall(
            since_ns=since_ns,
            noticed_ns=noticed_ns,
            ended_ns=ended_ns,
            limit_ns=limit_ns,
            step=step,
            paths=self._rows(value.get("paths"), self._path),
            stacks=stacks,
            groups=self._rows(answer.get("groups"), _group),
        )

    def _rows(self, values: Any, read: Any) -> tuple[Any, ...]:
        if values is None:
            return ()
        if not isinstance(values, list):
            self.left_out += 1
            return ()
        rows = [read(value) for value in values[:_MOST_LISTED]]
        self.left_out += rows.count(None)
        return tuple(row for row in rows if row is not None)

    def _path(self, value: Any) -> tuple[int, str] | None:
        match value:
            case [thread, path] if is_count(thread) and is_count(path):
                if thread < self._threads and path < len(self._paths):
                    return thread, self._paths[path]
        return None


def _is_time(value: Any) -> bool:
    return is_count(value) and value < TIME_LIMIT_NS


def _stack(value: Any) -> tuple[str, str] | None:
    match value:
        case [str(name), str(text)] if len(name) <= _MOST_NAME and len(text) <= _MOST_TEXT:
            return _shown(name), "\n".join(map(_shown, text.split("\n")))
    return None


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _group(value: Any) -> GroupProgress | None:
    match value:
        case [str(group), enqueued, started, completed, operation] if (
            all(one is None or is_count(one) for one in (enqueued, started, completed))
            and (operation is None or isinstance(operation, str))
            and max(len(group), len(operation or "")) <= _MOST_NAME
        ):
            return GroupProgress(
                _shown(group),
                -1 if enqueued is None else enqueued,
                started,
                completed,
                None if operation is None else _shown(operation),
            )
    return None


def _stacks_of(traceback: str) -> tuple[tuple[str, str], ...]:
    """What CPython has printed of all threads, which knows no names. It begins with the newest, so
    the main thread comes last: here it comes first, and last those that run no Python."""
    stacks: list[tuple[str, list[str]]] = []
    for line in traceback.splitlines():
        heading = _THREAD.fullmatch(line.strip())
        if heading is not None:
            stacks.append((f"thread {int(heading[1], 16)}", []))
        elif stacks and line.strip():
            stacks[-1][1].append(_shown(line.strip()))
    stacks = sorted(reversed(stacks), key=lambda stack: stack[1] == [_NO_FRAME])
    return tuple((name, "\n".join(lines)) for name, lines in stacks[:_MOST_LISTED])
