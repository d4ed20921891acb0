# SPDX-License-Identifier: Apache-2.0
"""The STALLS document. What in it makes no sense is left out, and counted."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import (
    Each,
    Object,
    Schema,
    fitting,
    json_object,
    picked,
)

MOST_STALLS = 8
_MOST_TEXT = 1 << 18
_NO_FRAME = "<no Python frame>"
_THREAD = re.compile(r"(?:Current t|T)hread (0x[0-9a-f]{1,16})\b.*\(most recent call first\):")

_is_time = fits.integer(0, TIME_LIMIT_NS)
_FACTS = {
    **dict.fromkeys(("since_ns", "noticed_ns", "limit_ns"), _is_time),
    "ended_ns": fits.or_null(_is_time),
    "step": fits.integer(-1, TIME_LIMIT_NS),
}
_is_name, _is_number = fits.string(300), fits.or_null(fits.count)
_is_stack = fits.row(_is_name, fits.string(_MOST_TEXT))
_is_group = fits.row(_is_name, _is_number, _is_number, _is_number, fits.or_null(_is_name))


def decode_stalls(data: bytes, paths: Sequence[str], threads: int) -> tuple[tuple[Stall, ...], int]:
    """What the document says, and how many stalls and parts of them make no sense.

    Args:
        paths: of the run.
        threads: how many it has.

    Raises:
        RunFileDamagedError: it is no JSON object.
    """
    parts: Schema = {
        "paths": Each(fits.row(fits.integer(0, threads), fits.integer(0, len(paths)))),
        "answer": Object({"stacks": Each(_is_stack), "groups": Each(_is_group)}, may_be_null=True),
        "traceback": fits.or_null(fits.string()),
    }
    left_out: list[str] = []
    found = fitting(json_object(data, "STALLS"), {"stalls": Each(_is_stall)}, left_out)
    stalls = tuple(
        _stall(one, fitting(one, parts, left_out), paths)
        for one in found.get("stalls", [])[:MOST_STALLS]
    )
    return stalls, len(left_out)


def _is_stall(value: Any) -> bool:
    if not fits.fields(**_FACTS)(value) or value["since_ns"] > value["noticed_ns"]:
        return False
    ended_ns = value.get("ended_ns")
    return ended_ns is None or bool(value["noticed_ns"] <= ended_ns)


def _stall(found: Mapping[str, Any], parts: Mapping[str, Any], paths: Sequence[str]) -> Stall:
    answer = parts.get("answer") or {}
    stacks = tuple(
        (_shown(name), "\n".join(map(_shown, text.split("\n"))))
        for name, text in answer.get("stacks", [])
    )
    # It is of the time when the GIL could not be taken; Python has answered after that.
    traceback = (parts.get("traceback") or "")[:_MOST_TEXT]
    return Stall(
        **picked(found, _FACTS),
        paths=tuple((thread, paths[path]) for thread, path in parts.get("paths", [])),
        stacks=_stacks_of(traceback) or stacks,
        groups=tuple(_progress(*group) for group in answer.get("groups", [])),
    )


def _progress(group: str, enqueued: int | None, *others: Any) -> GroupProgress:
    started, completed, operation = others
    return GroupProgress(
        _shown(group),
        -1 if enqueued is None else enqueued,
        started,
        completed,
        None if operation is None else _shown(operation),
    )


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


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
    return tuple((name, "\n".join(lines)) for name, lines in stacks)
