# SPDX-License-Identifier: Apache-2.0
"""Notes the calls that set training up, while a recording goes on.

The functions are hooked below their Python objects. They are called a few times in a program, and
each call costs some ten microseconds; of backward passes only those that keep a graph are looked at
so, and of these the first ones. Of calls inside each other, on one thread, the outermost counts.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any

from pyinstrument_gpu.aspects.setup_calls import DOCUMENT, MOST_CALLS, MOST_TEXT
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported

_ANY_CALL = 0  # no call is passed over by a quick check (patching/hooks.py, which needs torch)
_MOST_PARAMETERS = 1000
_MOST_PASSES = 10
"""Of backward passes that keep a graph, so many are noted."""
_WITHOUT_OBJECT = {"threads": "torch.set_num_threads", "backward": "backward(create_graph=True)"}
"""Calls that make nothing, as they are named."""


class SetupWatch(Watcher):
    """The watch on these calls during one recording."""

    name = DOCUMENT

    def __init__(self) -> None:
        self._leave = self._leaves  # one object, by which the hooks are known
        self._inside: set[int] = set()
        self._passes = 0
        self._last_step = -1
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
            engine = type(sys.modules["torch"].autograd.Variable._execution_engine)
            native.hook_call(
                engine.run_backward, _ANY_CALL, enter=self._enter_backward, leave=self._leave
            )

    def _enter(self, kind: str, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        thread = threading.get_ident()
        if thread in self._inside:
            return None
        self._inside.add(thread)
        return kind

    def _enter_backward(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        # The engine, tensors, their gradients, retain_graph, create_graph. Only `backward`, and not
        # `grad`, which takes derivatives of derivatives, accumulates gradients.
        if len(args) < 5 or args[4] is not True or not (kwargs or {}).get("accumulate_grad"):
            return None
        # One that is taken now and then says nothing of a step: two steps in a row have it.
        before, self._last_step = self._last_step, native.open_place()[1]
        if self._passes >= _MOST_PASSES or before < 0 or self._last_step != before + 1:
            return None
        self._passes += 1
        return self._enter("backward", args, kwargs)

    def _leaves(self, kind: str, args: tuple[Any, ...], succeeded: bool) -> None:
        self._inside.discard(threading.get_ident())
        if succeeded and self.is_on:
            with contextlib.suppress(Exception):  # an object that answers otherwise
                self._note(kind, args, sys._getframe(1))

    def _note(self, kind: str, args: tuple[Any, ...], frame: FrameType) -> None:
        frames: Any = sys.modules["pyinstrument_gpu.patching.program_frames"]
        program, library = frames.maker_of(frame, None if kind in _WITHOUT_OBJECT else args[0])
        if kind == "anomaly" and library is not None:
            return  # torch's own use, as where it compiles
        call = _WITHOUT_OBJECT.get(kind) or type(args[0]).__name__[:MOST_TEXT]
        if call == "set_detect_anomaly" and not sys.modules["torch"].is_anomaly_enabled():
            return
        file, line = program.f_code.co_filename, program.f_lineno
        if line is None:
            return
        file = (frames.cell_of(file) or file)[-MOST_TEXT:]
        known: dict[str, Any] = {"kind": kind, "call": call, "file": file, "line": line}
        if kind == "loader":
            # Not by attributes, which may be properties of a class of the program's.
            fields = vars(args[0])
            known["is_shuffled"] = "Random" in type(fields.get("sampler")).__name__
            known["collate"] = _collate(fields.get("collate_fn"))
        elif kind == "optimizer":
            known["dtypes"] = sorted(_dtypes(vars(args[0])["param_groups"]))
        key = (kind, call, file, line)
        if key in self._calls:
            _join(known, self._calls[key])
        if key in self._calls or len(self._calls) < MOST_CALLS:
            self._calls[key] = known


def _join(known: dict[str, Any], before: dict[str, Any]) -> None:
    """Add what the same line has made before, such as the loaders of training and evaluation."""
    if known["kind"] == "loader" and known["collate"] != before["collate"]:
        of_shuffled = [one["collate"] for one in (known, before) if one["is_shuffled"]]
        known["collate"] = of_shuffled[0] if len(of_shuffled) == 1 else None
    known["is_shuffled"] = known.get("is_shuffled", False) or before.get("is_shuffled", False)
    known["dtypes"] = sorted({*known.get("dtypes", ()), *before.get("dtypes", ())})


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
    yield "optimizer", torch.optim.Optimizer.__init__  # that of its kind calls it


def _collate(function: Any) -> dict[str, Any] | None:
    function = function.__func__ if isinstance(function, MethodType) else function
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    if f"{os.sep}torch{os.sep}" in code.co_filename:
        return None
    name = function.__qualname__.rpartition("<locals>.")[2][:MOST_TEXT]
    file = code.co_filename[-MOST_TEXT:]
    return {"function": name, "file": file, "line": code.co_firstlineno}


def _dtypes(groups: Any) -> set[str]:
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # no class or mode of the program's should see it
        return {
            str(parameter.dtype).removeprefix("torch.")[:MOST_TEXT]
            for group in groups
            for parameter in group["params"][:_MOST_PARAMETERS]
        }


def watcher(options: object) -> Watcher:
    return SetupWatch()
