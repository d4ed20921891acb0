# SPDX-License-Identifier: Apache-2.0
"""Notes the calls that set training up, while a recording goes on.

The functions are hooked below their Python objects. They are called a few times in a program, and
each call costs some ten microseconds. An optimizer's constructor calls that of its base class: of
calls inside each other, on one thread, the outermost counts.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

from pyinstrument_gpu.aspects.setup_calls import DOCUMENT, MOST_CALLS, MOST_TEXT
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported

_ANY_CALL = 0  # no call is passed over by a quick check (patching/hooks.py, which needs torch)
_MOST_PARAMETERS = 1000


class SetupWatch(Watcher):
    """The watch on these calls during one recording."""

    name = DOCUMENT

    def __init__(self) -> None:
        self._leave = self._leaves  # one object, by which the hooks are known
        self._inside: set[int] = set()
        self._calls: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._withdraw: Callable[[], None] | None = None

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self._withdraw = when_imported("torch", self._hook)

    def end(self) -> None:
        if self._withdraw is not None:
            self._withdraw()
        native.unhook(self._leave)
        super().end()

    def document(self) -> dict[str, Any]:
        return {"calls": [dict(call) for call in self._calls.copy().values()][:MOST_CALLS]}

    def _hook(self) -> None:
        with contextlib.suppress(Exception):  # a torch that is built otherwise: nothing is noted
            from pyinstrument_gpu.patching import dynamo, program_frames

            dynamo.leave_out(sys.modules[__name__], program_frames)
            for kind, function in _functions():
                native.hook_call(
                    function, _ANY_CALL, enter=partial(self._enter, kind), leave=self._leave
                )

    def _enter(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        thread = threading.get_ident()
        if thread in self._inside:
            return None
        self._inside.add(thread)
        return kind

    def _leaves(self, kind: str, args: tuple[Any, ...], succeeded: bool) -> None:
        self._inside.discard(threading.get_ident())
        if succeeded and self.is_on:
            with contextlib.suppress(Exception):  # an object that answers otherwise
                self._note(kind, args, sys._getframe(1))

    def _note(self, kind: str, args: tuple[Any, ...], frame: FrameType) -> None:
        frames: Any = sys.modules["pyinstrument_gpu.patching.program_frames"]
        program, _ = frames.frames_of_call(frame)
        file = program.f_code.co_filename
        file = (frames.cell_of(file) or file)[-MOST_TEXT:]
        known: dict[str, Any] = {}
        if kind == "threads":
            call = "torch.set_num_threads"
        else:
            call = type(args[0]).__name__[:MOST_TEXT]
            if kind == "loader":
                known["is_shuffled"] = "Random" in type(args[0].sampler).__name__
                known["collate"] = _collate(args[0].collate_fn)
            elif kind == "optimizer":
                known["dtypes"] = sorted(_dtypes(args[0]))
            elif call == "set_detect_anomaly" and not sys.modules["torch"].is_anomaly_enabled():
                return
        key = (kind, call, file, program.f_lineno)
        if key in self._calls or len(self._calls) < MOST_CALLS:
            self._calls[key] = {
                "kind": kind,
                "call": call,
                "file": file,
                "line": program.f_lineno,
                **known,
            }


def _functions() -> Iterator[tuple[str, Any]]:
    """The functions that are hooked, and what their calls are. What Python calls from Python is not
    seen on each version, but what a type calls is."""
    import torch
    from torch.autograd import anomaly_mode
    from torch.utils.data import DataLoader

    yield "loader", DataLoader.__init__
    yield "threads", torch.set_num_threads
    yield "anomaly", anomaly_mode.set_detect_anomaly.__init__
    yield "anomaly", anomaly_mode.detect_anomaly.__init__
    base = torch.optim.Optimizer
    yield "optimizer", base.__init__
    for found in set(vars(torch.optim).values()):
        if isinstance(found, type) and issubclass(found, base) and "__init__" in vars(found):
            yield "optimizer", found.__init__


def _collate(function: Any) -> dict[str, Any] | None:
    code = getattr(function, "__code__", None)
    if code is None or str(function.__module__).startswith("torch."):
        return None
    name = function.__qualname__.rpartition("<locals>.")[2][:MOST_TEXT]
    return {
        "function": name,
        "file": code.co_filename[-MOST_TEXT:],
        "line": code.co_firstlineno,
    }


def _dtypes(optimizer: Any) -> set[str]:
    found = set()
    for group in optimizer.param_groups:
        for parameter in group["params"][:_MOST_PARAMETERS]:
            found.add(str(parameter.dtype).removeprefix("torch."))
    return found


def watcher(options: object) -> Watcher:
    return SetupWatch()
