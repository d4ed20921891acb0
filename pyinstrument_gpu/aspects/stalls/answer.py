# SPDX-License-Identifier: Apache-2.0
"""What Python knows of a stall: the stacks of its threads, and how far the process groups are.

A thread of the native module calls this when the watchdog has noticed one and the GIL can be taken.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.problems import print_error

if TYPE_CHECKING:
    from pyinstrument_gpu.aspects.collectives.flight_recorder import GroupStatus

    Progress = list[tuple[str, GroupStatus, str | None]]

MOST_THREADS = 64
MOST_FRAMES = 64
MOST_CHARACTERS = 128 << 10
"""Of all stacks together."""

_MOST_GROUPS = 64
_MOST_TEXT = 300


def answer(
    groups: Callable[[], Progress], our_threads: Collection[int], rank: int | None = None
) -> None:
    """Write down what is known of the newest stall, and tell the user once. It raises nothing.

    Args:
        groups: how far the process groups are, as `CollectiveWatch.read`.
        our_threads: identifiers of threads that are not the program's.
        rank: whose it is, where there are several.
    """
    with contextlib.suppress(Exception):
        stall = native.newest_stall()
        if stall is None:
            return
        number, sentence = stall
        stacks = thread_stacks({threading.get_ident(), *our_threads})
        progress = groups()[:_MOST_GROUPS]
        facts = {
            "stacks": stacks,
            "groups": [[group, *status, operation] for group, status, operation in progress],
        }
        if native.answer_stall(number, json.dumps(facts).encode()):
            who = "" if rank is None else f"rank {rank}: "
            place = f"{_where(stacks)}{_last_collective(progress)}"
            print_error(f"pyinstrument_gpu: {who}{sentence}{place}")


def thread_stacks(left_out: Collection[int] = ()) -> list[tuple[str, str]]:
    """By the name of a thread its stack, the innermost call first; bounded. No file is read for it:
    the disk may be what hangs.

    Args:
        left_out: identifiers of threads.
    """
    # Not `enumerate`, which waits for a lock.
    known: dict[int, Any] = dict(getattr(threading, "_active", {}))
    main = threading.main_thread().ident
    frames = sorted(sys._current_frames().items(), key=lambda item: item[0] != main)
    stacks = []
    room = MOST_CHARACTERS
    for ident, frame in [(i, f) for i, f in frames if i not in left_out][:MOST_THREADS]:
        text = _stack(frame)[:room]
        room -= len(text)
        name = getattr(known.get(ident), "name", None)
        stacks.append((str(name)[:_MOST_TEXT] if name is not None else f"thread {ident}", text))
    return stacks


def _stack(frame: FrameType | None) -> str:
    lines: list[str] = []
    while frame is not None and len(lines) < MOST_FRAMES:
        code = frame.f_code
        file, name = code.co_filename[-_MOST_TEXT:], code.co_name[:_MOST_TEXT]
        lines.append(f'File "{file}", line {frame.f_lineno}, in {name}')
        frame = frame.f_back
    if frame is not None:
        lines.append("...")
    return "\n".join(lines)


def _where(stacks: list[tuple[str, str]]) -> str:
    """Where the main thread is, the first one."""
    line = stacks[0][1].partition("\n")[0] if stacks else ""
    return f"; the main thread is at {line[:1].lower()}{line[1:]}" if line else ""


def _last_collective(progress: Progress) -> str:
    asked = [one for one in progress if one[1].enqueued is not None]
    open_ones = [one for one in asked if one[1].enqueued != one[1].completed] or asked
    if not open_ones:
        return ""
    group, status, operation = open_ones[0]
    ended = "" if status.completed is None else f", the last one that ended {status.completed:,}"
    return (
        f"; the last collective operation asked for in group {group} is number "
        f"{status.enqueued:,}{f' ({operation})' if operation else ''}{ended}"
    )
