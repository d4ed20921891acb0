# SPDX-License-Identifier: Apache-2.0
"""Notes the calls that set training up, while a recording goes on.

The functions are hooked below their Python objects. They are called a few times in a program, and
each call costs some ten microseconds. What may be called in each step is looked at so only the
first times: backward passes that keep a graph, autocast, tensors made of arrays. Of hooks it is the
tenth, the twentieth, the fortieth. Of calls inside each other, on one thread, the outermost counts.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType, FunctionType, MethodType
from typing import Any

from pyinstrument_gpu.aspects.setup_calls import DOCUMENT, MOST_CALLS, MOST_TEXT
from pyinstrument_gpu.aspects.setup_calls.kept_values import kept_values
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported

_ANY_CALL = 0  # no call is passed over by a quick check (patching/hooks.py, which needs torch)
_MOST_PARAMETERS = 1000
_MOST_PASSES = 10
"""Of backward passes that keep a graph, and of autocast, so many are noted."""
_MOST_ARRAYS = 64
"""Of tensors that are made of arrays, so many are looked at."""
_AFTER_STEPS = 20
"""So many have shown where the loop is."""
_MOST_FRAMES = 8
_MOST_KEPT = 3
"""More lines of a loop that keep something say nothing of which of them matters."""
_MANY_HOOKS = 10
"""Of one module. So many at first, and then twice as many, are looked at."""
_EACH_STEP = 2.0
"""So many hooks a step, and so many steps a hook, at most are one in each."""
_MOST_LOOKS = 1000
"""Of calls of autocast and of hooks that are registered, as long as none is noted."""
_WITHOUT_OBJECT = {
    "threads": "torch.set_num_threads",
    "backward": "backward(create_graph=True)",
    "retained": "backward(retain_graph=True)",
    "doubles": "torch.from_numpy",
    "hooks": "register_hook",
}
"""Calls that make nothing, as they are named."""


class SetupWatch(Watcher):
    """The watch on these calls during one recording."""

    name = DOCUMENT

    def __init__(self) -> None:
        # Objects, by which the hooks are known: one for those that are taken back together.
        self._leave, self._leave_array, self._leave_hook = (partial(self._leaves) for _ in range(3))
        self._inside: set[int] = set()
        self._loop: list[tuple[str, int]] = []
        self._arrays = 0
        self._looks = {"autocast": 0, "hooks": 0}
        self._passes = {"backward": 0, "retained": 0, "autocast": 0}
        self._hooks: dict[tuple[Any, ...], tuple[int, int]] = {}
        self._last_step = {"backward": -1, "retained": -1}
        self._calls: dict[tuple[Any, ...], dict[str, Any]] = {}
        self._withdraw: Callable[[], None] | None = None

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self._withdraw = when_imported("torch", self._hook)
        native.call_before_step(self._note_loop, after=_AFTER_STEPS)

    def end(self) -> None:
        if self._withdraw is not None:
            self._withdraw()
        native.unhook(self._leave)
        native.unhook(self._leave_array)
        native.unhook(self._leave_hook)
        super().end()

    def document(self) -> dict[str, Any]:
        loop, self._loop = self._loop, []
        for file, line in loop:
            with contextlib.suppress(Exception):  # a file that is gone, or too deep for the parser
                if (kept := kept_values(file, line)) is None:
                    continue
                for name, where in kept if len(kept) <= _MOST_KEPT else ():
                    text = name[:MOST_TEXT]
                    known = {"kind": "kept", "call": text, "file": file[-MOST_TEXT:], "line": where}
                    self._calls["kept", text, file, where] = known
                break
        return {"calls": [dict(call) for call in self._calls.copy().values()][:MOST_CALLS]}

    def _hook(self) -> None:
        with contextlib.suppress(Exception):  # a torch that is built otherwise: nothing is noted
            from pyinstrument_gpu.patching import dynamo, program_frames

            dynamo.leave_out(sys.modules[__name__], program_frames)
            for kind, function in _functions():
                native.hook_call(
                    function, _ANY_CALL, enter=partial(self._enter, kind), leave=self._leave
                )
            torch: Any = sys.modules["torch"]
            for function, enter, leave in (
                (torch.amp.autocast_mode.autocast.__init__, self._enter_autocast, self._leave),
                (torch.utils.hooks.RemovableHandle.__init__, self._enter_hook, self._leave_hook),
                (torch.from_numpy, self._enter_array, self._leave_array),
            ):
                native.hook_call(function, _ANY_CALL, enter=enter, leave=leave)
            engine = type(torch.autograd.Variable._execution_engine)
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
        if len(args) < 5 or args[3] is not True or not (kwargs or {}).get("accumulate_grad"):
            return None
        # One that is taken now and then says nothing of a step: two steps in a row have it.
        kind = "backward" if args[4] is True else "retained"
        before, self._last_step[kind] = self._last_step[kind], native.open_place()[1]
        if self._passes[kind] >= _MOST_PASSES or before < 0 or self._last_step[kind] != before + 1:
            return None
        self._passes[kind] += 1
        return self._enter(kind, args, kwargs)

    def _note_loop(self) -> None:
        """Note where the program is as a step begins: its lines, the innermost first."""
        frames: Any = sys.modules.get("pyinstrument_gpu.patching.program_frames")
        if not self.is_on or frames is None:
            return
        # As far as a library's, which then has the loop.
        own = itertools.dropwhile(frames.is_internal, frames.callers(sys._getframe(1)))
        program = itertools.takewhile(frames.is_of_program, own)
        self._loop = [
            (one.f_code.co_filename, one.f_lineno or 0)
            for one in itertools.islice(program, _MOST_FRAMES)
        ]

    def _enter_autocast(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        self._looks["autocast"] += 1
        is_over = self._passes["autocast"] >= _MOST_PASSES or self._looks["autocast"] > _MOST_LOOKS
        return None if is_over else self._enter("autocast", args, kwargs)

    def _enter_hook(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        self._looks["hooks"] += 1
        if self._looks["hooks"] > _MOST_LOOKS and not self._hooks:
            native.unhook(self._leave_hook)
            return None
        # The handle, and the hooks that are there already.
        hooks = len(args[1]) if len(args) > 1 else 0
        is_looked_at = hooks >= _MANY_HOOKS and not hooks % _MANY_HOOKS
        count = hooks // _MANY_HOOKS
        if not is_looked_at or count & (count - 1) or native.open_place()[1] < 0:
            return None
        return self._enter("hooks", args, kwargs)

    def _adds_hooks(self, key: tuple[Any, ...], hooks: int) -> bool:
        """Return whether a line adds a hook in about each step, and has since it was first looked
        at."""
        step = native.open_place()[1]
        first_hooks, first_step = self._hooks.setdefault(key, (hooks, step))
        more, steps = hooks - first_hooks, step - first_step
        return more > 0 and steps > 0 and 1 / _EACH_STEP <= more / steps <= _EACH_STEP

    def _enter_array(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str | None:
        self._arrays += 1
        if self._arrays > _MOST_ARRAYS:
            native.unhook(self._leave_array)
            return None
        is_double = len(args) == 1 and getattr(args[0], "dtype", None) == "float64"
        return self._enter("doubles", args, kwargs) if is_double else None

    def _leaves(self, kind: str, args: tuple[Any, ...], succeeded: bool) -> None:
        self._inside.discard(threading.get_ident())
        if succeeded and self.is_on:
            with contextlib.suppress(Exception):  # an object that answers otherwise
                self._note(kind, args, sys._getframe(1))

    def _note(self, kind: str, args: tuple[Any, ...], frame: FrameType) -> None:
        frames: Any = sys.modules["pyinstrument_gpu.patching.program_frames"]
        program, library = frames.maker_of(frame, None if kind in _WITHOUT_OBJECT else args[0])
        if kind in ("anomaly", "autocast") and library is not None:
            return  # torch's own use, as where it compiles or computes activations again
        if kind == "autocast":
            if args[0].device != "cpu" or not args[0]._enabled:
                return
            self._passes[kind] += 1
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
            size = fields.get("batch_size")
            known["batch_size"] = size if type(size) is int and size > 0 else 0
        elif kind == "optimizer":
            known |= _parameters(vars(args[0])["param_groups"])
        elif kind == "hooks":
            known["hooks"] = len(args[1])
            known["call"] = call = _registers(frame) or call
        key = (kind, call, file, line)
        if kind == "hooks" and not self._adds_hooks(key, known["hooks"]):
            return
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
    for name in ("batch_size", "matrices", "elements", "kernels", "hooks"):
        known[name] = max(known.get(name, 0), before.get(name, 0))


def _registers(frame: FrameType) -> str | None:
    """Return the name of torch's function that registers a hook."""
    for _ in range(_MOST_FRAMES):
        if frame.f_code.co_name.startswith("register_"):
            return frame.f_code.co_name[:MOST_TEXT]
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


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


def _parameters(groups: Any) -> dict[str, Any]:
    """Return what is noted of an optimizer's parameters."""
    torch: Any = sys.modules["torch"]
    with torch._C.DisableTorchFunction():  # no class or mode of the program's should see it
        all_of_them = [one for group in groups for one in group["params"][:_MOST_PARAMETERS]]
        dtypes = {str(one.dtype).removeprefix("torch.")[:MOST_TEXT] for one in all_of_them}
        known = [one for one in all_of_them if not torch.nn.parameter.is_lazy(one)]
        matrices = [int(one.numel()) for one in known if one.dim() == 2]
        kernels = sum(one.dim() > 2 for one in known)
    sizes = {"matrices": len(matrices), "elements": sum(matrices), "kernels": kernels}
    return {"dtypes": sorted(dtypes), **sizes}


def watcher(options: object) -> Watcher:
    return SetupWatch()
