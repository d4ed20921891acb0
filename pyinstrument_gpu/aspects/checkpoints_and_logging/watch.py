# SPDX-License-Identifier: Apache-2.0
"""Times the calls with which a program writes checkpoints and logs, while a recording goes on.

The functions are hooked below their Python objects, once the program has imported them; it costs
some microseconds per call. Of calls inside each other, on one thread, the outermost counts. What
writes an asynchronous checkpoint calls the same functions, on a thread of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from pyinstrument_gpu.aspects.checkpoints_and_logging import (
    CHECKPOINT_KIND,
    DOCUMENT,
    LOGGING_KIND,
    MOST_PLACES,
    MOST_TEXT,
)
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import undo_all, when_imported

SHORT_NS = 100_000
"""A call that takes no longer is a part of the sum of its step, and has no place."""
_ANY_CALL = 0  # no call is passed over by a quick check (patching/hooks.py, which needs torch)


class _Calls(NamedTuple):
    """Functions of a module, or methods of one of its classes.

    Attributes:
        shown: what a report calls their owner.
        path: the position of the argument that says where the output goes, and its name.
    """

    kind: int
    module: str
    owner: str
    names: tuple[str, ...]
    shown: str
    path: tuple[int, str] | None = None


_WRITER = (
    *("add_scalar", "add_scalars", "add_histogram", "add_image", "add_images", "add_figure"),
    *("add_video", "add_text", "add_graph", "add_embedding", "flush"),
)
_DCP = "torch.distributed.checkpoint"
CALLS: tuple[_Calls, ...] = (
    _Calls(CHECKPOINT_KIND, "torch", "serialization", ("save",), "torch", (1, "f")),
    _Calls(CHECKPOINT_KIND, f"{_DCP}.state_dict_saver", "", ("save", "async_save"), _DCP),
    _Calls(
        CHECKPOINT_KIND,
        f"{_DCP}._async_process_executor",
        "_ProcessBasedAsyncCheckpointExecutor",
        ("_execute_save_impl",),
        _DCP,
    ),
    *(
        _Calls(CHECKPOINT_KIND, module, "", ("save_file",), module, (1, "filename"))
        for module in ("safetensors.torch", "safetensors.numpy")
    ),
    *(
        _Calls(LOGGING_KIND, module, "SummaryWriter", _WRITER, "SummaryWriter")
        for module in ("torch.utils.tensorboard.writer", "tensorboardX.writer")
    ),
    _Calls(LOGGING_KIND, "wandb.sdk.wandb_run", "Run", ("log",), "wandb"),
    _Calls(
        LOGGING_KIND,
        "mlflow.tracking.fluent",
        "",
        ("log_metric", "log_metrics", "log_artifact", "log_figure", "log_image"),
        "mlflow",
    ),
    _Calls(LOGGING_KIND, "logging", "Logger", ("callHandlers",), "logging"),
)
"""Versions of these libraries differ: what is not there is passed over."""


class _Call(NamedTuple):
    """A call that goes on."""

    begin_ns: int
    what: _Calls
    name: str
    path: Any


class OutputWatch(Watcher):
    """The watch on checkpoints and logging during one recording.

    Args:
        clock: the time of the run, in ns; None for the recording's.
        calls: those that are timed.
    """

    name = DOCUMENT

    def __init__(
        self, clock: Callable[[], int] | None = None, calls: tuple[_Calls, ...] = CALLS
    ) -> None:
        self._clock = clock or (lambda: native.read_clocks()[0])
        self._calls = calls
        self._leave = self._leaves  # one object, by which the hooks are known
        self._inside: set[int] = set()
        self._places: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._not_watched: list[str] = []
        self._undo: list[Callable[[], None]] = []

    def begin(self, recording: ActiveRecording) -> None:
        """Time each of the calls from now on, or as soon as there can be one."""
        super().begin(recording)
        for calls in self._calls:
            self._undo.append(when_imported(calls.module, partial(self._hook, calls)))

    def end(self) -> None:
        undo_all(self._undo)
        native.unhook(self._leave)
        super().end()

    def document(self) -> dict[str, Any]:
        places = [dict(place) for place in self._places.copy().values()]
        return {"places": places[:MOST_PLACES], "not_watched": self._not_watched[:MOST_PLACES]}

    def _hook(self, calls: _Calls) -> None:
        """Hook the calls, as their module is there."""
        with contextlib.suppress(Exception):  # it is in the middle of the program's import
            if calls.module == "torch":
                from pyinstrument_gpu.patching import dynamo, program_frames

                dynamo.leave_out(sys.modules[__name__], program_frames)
            owner: Any = sys.modules[calls.module]
            owner = getattr(owner, calls.owner) if calls.owner else owner
            for name in calls.names:
                function = vars(owner).get(name)
                function = getattr(function, "__func__", function)  # of a staticmethod
                if function is not None and not native.hook_call(
                    function, _ANY_CALL, enter=self._entering(calls, name), leave=self._leave
                ):
                    self._not_watched.append(f"{calls.shown}.{name}")

    def _entering(self, what: _Calls, name: str) -> Callable[[Any, Any], _Call | None]:
        def enter(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> _Call | None:
            thread, path = threading.get_ident(), None
            if thread in self._inside:
                return None
            if what.path is not None:
                position, keyword = what.path
                given = kwargs or {}
                path = args[position] if len(args) > position else given.get(keyword)
            self._inside.add(thread)
            return _Call(self._clock(), what, name, path)

        return enter

    def _leaves(self, call: _Call, args: object, succeeded: bool) -> None:
        self._inside.discard(threading.get_ident())
        end_ns, kind = self._clock(), call.what.kind
        if not self.is_on:
            return
        if end_ns - call.begin_ns <= SHORT_NS:
            native.add_cause_to_step(kind, end_ns - call.begin_ns)
            return
        native.add_cause(kind, call.begin_ns, end_ns, self._place_of(call, sys._getframe(1)))

    def _place_of(self, call: _Call, frame: FrameType) -> int:
        """The number of a call's place; behind the last where there is no room."""
        file, line = _line(frame)
        key = (f"{call.what.shown}.{call.name}", file, line)
        if key not in self._places:
            if len(self._places) == MOST_PLACES:
                return MOST_PLACES
            self._places[key] = {"call": key[0], "file": file, "line": line}
        if isinstance(call.path, (str, os.PathLike)):
            with contextlib.suppress(OSError):
                self._places[key]["size_bytes"] = os.stat(call.path).st_size
        return [*self._places].index(key)


def _line(frame: FrameType) -> tuple[str, int]:
    """The line of the program that makes the call."""
    frames: Any = sys.modules.get("pyinstrument_gpu.patching.program_frames")
    if frames is None:  # there is no torch, without which it can't tell what is the program
        return frame.f_code.co_filename[-MOST_TEXT:], frame.f_lineno
    program, _ = frames.frames_of_call(frame)
    file = program.f_code.co_filename
    return (frames.cell_of(file) or file)[-MOST_TEXT:], program.f_lineno


def watcher(options: object) -> Watcher:
    return OutputWatch()
