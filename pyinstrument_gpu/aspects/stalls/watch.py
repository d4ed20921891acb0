# SPDX-License-Identifier: Apache-2.0
"""Python's knowledge of a stall: the stacks of its threads, and what the other watchers know."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Collection
from types import FrameType
from typing import Any

from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER
from pyinstrument_gpu.patching.problems import print_error

MOST_THREADS = 64
MOST_FRAMES = 64
MOST_CHARACTERS = 128 << 10
"""Of all stacks together."""

LAUNCHER = os.path.join(OWN_FOLDER, "launch", "program.py")
"""The frames of a program that `run` has started end where this file's begin."""

_MOST_TEXT = 300
_LOOKS = 4
_LONGEST_LOOK_S = 0.5
_DISTRIBUTED = "/torch/distributed/"
_WRAPPERS = ("/torch/_ops.py", "/torch/_compile.py", "/torch/distributed/c10d_logger.py")
_PEERS = ("src", "dst", "group_src", "group_dst")


class StallWatch(Watcher):
    """Answers the watchdog of one recording.

    Args:
        limit_s: for how long nothing has to happen.
    """

    _rank: int | None = None

    def __init__(self, limit_s: float = 0.0) -> None:
        self._look_s = min(_LONGEST_LOOK_S, limit_s / 20)

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        if (launcher_number("WORLD_SIZE") or 1) > 1:
            self._rank = launcher_number("RANK")

    def stalled(self) -> None:
        """Write down what is known of the newest stall, and tell the user once. A thread of the
        native module calls this when it has got the GIL."""
        with contextlib.suppress(Exception):
            stall, recording = native.newest_stall(), self._recording
            if stall is None or recording is None:
                return
            number, sentence = stall
            if self._moves():
                native.withdraw_stall(number)
                return
            watchers = recording.watchers.values()
            ours = [thread for watcher in watchers for thread in watcher.threads]
            stacks = thread_stacks({threading.get_ident(), *ours})
            facts: dict[str, Any] = {"stacks": stacks, "call": distributed_call(_main_frame())}
            place = _where(stacks)
            for watcher in watchers:
                more, words = watcher.stall_facts()
                facts.update(more)
                place += words
            if native.answer_stall(number, json.dumps(facts).encode()):
                who = "" if self._rank is None else f"rank {self._rank}: "
                print_error(f"pyinstrument_gpu: {who}{sentence}{place}")

    def _moves(self) -> bool:
        """Return whether the stack of the main thread changes from one look to the next."""
        stack = _stack(_main_frame())
        for _ in range(_LOOKS):
            time.sleep(self._look_s)
            if _stack(_main_frame()) != stack:
                return True
        return False


def _main_frame() -> FrameType | None:
    ident = threading.main_thread().ident
    return None if ident is None else sys._current_frames().get(ident)


def distributed_call(frame: FrameType | None) -> tuple[str, int | None] | None:
    """The function of torch.distributed that a thread waits in, and the rank that it was given the
    number of: the innermost frames are that function's.

    Args:
        frame: the thread's innermost one.
    """
    found = None
    while frame is not None:
        file = frame.f_code.co_filename
        if _DISTRIBUTED in file and not file.endswith(_WRAPPERS):
            found = frame
        elif not file.endswith(_WRAPPERS):
            break
        frame = frame.f_back
    if found is None:
        return None
    given = found.f_locals
    peers = [given[name] for name in _PEERS if type(given.get(name)) is int]
    return found.f_code.co_name[:_MOST_TEXT], peers[0] if peers and peers[0] >= 0 else None


def thread_stacks(left_out: Collection[int] = ()) -> list[tuple[str, str]]:
    """Return by the name of a thread its stack, the innermost call first; bounded. No file is read
    for it: the disk may be what hangs.

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
    while frame is not None and frame.f_code.co_filename != LAUNCHER:
        if len(lines) == MOST_FRAMES:
            lines.append("...")
            break
        code = frame.f_code
        file, name = code.co_filename[-_MOST_TEXT:], code.co_name[:_MOST_TEXT]
        lines.append(f'File "{file}", line {frame.f_lineno}, in {name}')
        frame = frame.f_back
    return "\n".join(lines)


def _where(stacks: list[tuple[str, str]]) -> str:
    """Return where the main thread is, the first one."""
    line = stacks[0][1].partition("\n")[0] if stacks else ""
    return f"; the main thread is at {line[:1].lower()}{line[1:]}" if line else ""


def watcher(options: Any) -> Watcher:
    return StallWatch(options.watchdog_s or 0.0)
