# SPDX-License-Identifier: Apache-2.0
"""A time in which the program did nothing for far longer than its steps take.

The declarations are also those of the STALLS document (docs/run-file.md).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct
from msgspec.structs import replace

from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import LOST_PATH, Count, PathName, decode_object

_MOST_STALLS = 8
_MOST_TEXT = 1 << 18
_NO_FRAME = "<no Python frame>"
_THREAD = re.compile(r"(?:Current t|T)hread (0x[0-9a-f]{1,16})\b.*\(most recent call first\):")

_Time = Annotated[int, Meta(ge=0, lt=TIME_LIMIT_NS)]
_Name = Annotated[str, Meta(max_length=300)]
_Stack = Annotated[str, Meta(max_length=_MOST_TEXT)]


class GroupProgress(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """How far a process group had come.

    Attributes:
        group: its name.
        enqueued: number of the last operation that the program asked for; None if there was none.
        started, completed: of the last one that PyTorch saw begin, and end; None if it can't tell.
        operation: of the last one asked for, such as "all_reduce"; None if that is not known.
    """

    group: _Name
    enqueued: Count | None
    started: Count | None
    completed: Count | None
    operation: _Name | None


class DistributedCall(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A function of torch.distributed that a thread waits in.

    Attributes:
        function: its name, such as "barrier" or "recv".
        peer: the rank of which it was given the number; None if there is none.
    """

    function: _Name
    peer: Annotated[int, Meta(ge=0, lt=1 << 31)] | None = None


class Stall(Struct, frozen=True, kw_only=True):
    """What the watchdog saw. Times are ns since the run began.

    Attributes:
        since_ns: when a step or phase had last begun or ended, a module or loader been called, or
            a collective been asked for.
        noticed_ns: when the watchdog noticed.
        ended_ns: when something happened again; None if nothing has.
        limit_ns: how long nothing had to happen for that.
        step: index of the step that was open; -1 none.
        paths: by thread, as an index into `Run.threads`, the path of its innermost open phase.
        stacks: by the name of a thread its Python stack as text, innermost call first; empty if it
            could not be read.
        device_event_ns: when the device had last completed an event that was timed; None unknown.
        groups: how far the process groups had come.
        call: the function of torch.distributed that the main thread was in; None if it was in none,
            or that could not be seen.
    """

    since_ns: _Time
    noticed_ns: _Time
    ended_ns: _Time | None = None
    limit_ns: _Time
    step: Annotated[int, Meta(ge=-1, lt=TIME_LIMIT_NS)]
    paths: tuple[tuple[Count, str], ...] = ()
    stacks: tuple[tuple[_Name, _Stack], ...] = ()
    device_event_ns: int | None = None
    groups: tuple[GroupProgress, ...] = ()
    call: DistributedCall | None = None

    def __post_init__(self) -> None:
        if self.since_ns > self.noticed_ns:
            raise ValueError("a stall was noticed before it began")
        if self.ended_ns is not None and self.noticed_ns > self.ended_ns:
            raise ValueError("a stall ended before it was noticed")


class _Answer(Struct, frozen=True):
    stacks: tuple[tuple[_Name, _Stack], ...] = ()
    groups: tuple[GroupProgress, ...] = ()
    call: DistributedCall | None = None


class _NotedStall(Stall, frozen=True, kw_only=True):
    paths: tuple[tuple[Count, PathName], ...] = ()
    answer: _Answer | None = None
    traceback: str | None = None


class _Document(Struct, frozen=True):
    """The STALLS document."""

    stalls: Annotated[tuple[_NotedStall, ...], Meta(max_length=_MOST_STALLS)] = ()


def decode_stalls(data: bytes, paths: Sequence[str], threads: int) -> tuple[Stall, ...]:
    """Decode the document; of open phases, those whose path and thread the file has.

    Args:
        paths: of the run.
        threads: how many it has.

    Raises:
        RunFileDamagedError: the document does not fit.
    """
    found = decode_object(data, "STALLS", _Document, paths)
    return tuple(_stall(one, threads) for one in found.stalls)


def _stall(found: _NotedStall, threads: int) -> Stall:
    answer = found.answer or _Answer()
    stacks = tuple(
        (_shown(name), "\n".join(map(_shown, text.split("\n")))) for name, text in answer.stacks
    )
    # It is of the time when the GIL could not be taken; Python has answered after that.
    traceback = (found.traceback or "")[:_MOST_TEXT]
    read: dict[str, Any] = {
        "paths": tuple(one for one in found.paths if one[0] < threads and one[1] != LOST_PATH),
        "stacks": _stacks_of(traceback) or stacks,
        "groups": tuple(
            replace(one, group=_shown(one.group), operation=one.operation and _shown(one.operation))
            for one in answer.groups
        ),
        "call": answer.call and DistributedCall(_shown(answer.call.function), answer.call.peer),
    }
    return Stall(**{name: getattr(found, name) for name in Stall.__struct_fields__} | read)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


def _stacks_of(traceback: str) -> tuple[tuple[str, str], ...]:
    """Return the stacks of all threads that CPython has printed, without names. It begins with the
    newest, so the main thread comes last: here it is first, and those without Python are last."""
    stacks: list[tuple[str, list[str]]] = []
    for line in traceback.splitlines():
        heading = _THREAD.fullmatch(line.strip())
        if heading is not None:
            stacks.append((f"thread {int(heading[1], 16)}", []))
        elif stacks and line.strip():
            stacks[-1][1].append(_shown(line.strip()))
    stacks = sorted(reversed(stacks), key=lambda stack: stack[1] == [_NO_FRAME])
    return tuple((name, "\n".join(lines)) for name, lines in stacks)
