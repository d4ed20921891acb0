# SPDX-License-Identifier: Apache-2.0
"""The log of a program's start-up, on the thread that begins it.

Imports are observed at the function of importlib that the interpreter calls for modules that are
not loaded yet, and the rest at functions of torch, once the program has imported them. The hooks
lie below the Python objects (`patching/hooks.py`), so no frame of ours is in a traceback. They are
taken back at the first event after the first step.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from pyinstrument_gpu.aspects.startup import (
    BATCH,
    CHECKPOINT,
    DEVICE,
    GROUP,
    IMPORT,
    MODEL,
    MOST_INTERVALS,
    MOST_TEXT,
    OPTIMIZER,
    WORKERS,
)
from pyinstrument_gpu.core.record import is_installed
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import dynamo
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER
from pyinstrument_gpu.patching.import_hook import undo_all, when_imported

_KEPT_IMPORT_NS = 10_000_000
_KEPT_NS = 1_000_000
_GAP_NS = 20_000_000
"""The most between modules and values of parameters that are made in one go."""
_NEVER = 0  # `QuickCheck.NEVER`, of a module that needs torch
_HOOKED = (
    ("torch.nn.modules.module", "Module.to", DEVICE),
    ("torch.nn.modules.module", "Module.cuda", DEVICE),
    ("torch.nn.modules.module", "Module.load_state_dict", CHECKPOINT),
    ("torch.serialization", "load", CHECKPOINT),
    ("safetensors.torch", "load_file", CHECKPOINT),
    ("transformers.modeling_utils", "PreTrainedModel.from_pretrained", CHECKPOINT),
    ("torch.cuda", "_lazy_init", DEVICE),
    ("torch.optim.optimizer", "Optimizer.__init__", OPTIMIZER),
    ("torch.distributed.distributed_c10d", "init_process_group", GROUP),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter.__init__", WORKERS),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter.__next__", BATCH),
)
_MODULE = "torch.nn.modules.module"
_FILLING = ("constant_", "kaiming_uniform_", "normal_", "trunc_normal_", "uniform_", "zeros_")
"""Functions of torch.nn.init."""
_HAS_OWN_TYPE = sys.version_info[:2] == (3, 11)
"""Whether a hooked function has a type of its own. Dynamo then fails at a function whose defaults
it guards, as it does those of torch.nn.init."""


class StartupLog:
    """The log of one process before its first step; bounded. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._thread = threading.get_ident()
        self._undo: list[Callable[[], None]] = []
        # The same objects each time: they tell whose hooks they are.
        self._leave, self._filled = self._ends, self._filling_ends
        self._imports: list[list[Any]] = []
        self._open = 0
        self._building: dict[str, Any] | None = None
        self._intervals: list[dict[str, Any]] = []
        self._short_ns: dict[str, int] = {}
        self._lost = 0
        self._not_seen: list[str] = []
        self._watched_ns = 0
        self.program_ns: int | None = None
        """When the program's own code began, where we started it."""

    def begin(self) -> None:
        """Watch from now on."""
        self._watched_ns = time.monotonic_ns()
        bootstrap: Any = sys.modules["_frozen_importlib"]
        self._hook(bootstrap._find_and_load, IMPORT, self._import_begins)
        for module, path, part in _HOOKED:
            self._when(module, path, part, self._beginning(part))
        self._when(_MODULE, "Module.__init__", MODEL, self._module_begins)
        for name in _FILLING:
            self._when("torch.nn.init", name, MODEL, self._filling_begins, self._filled)
        if _HAS_OWN_TYPE:
            unhook = partial(native.unhook, self._filled)
            self._undo.append(when_imported("torch._dynamo", unhook))
        self._undo.append(when_imported("torch", _leave_out))

    def end(self) -> None:
        """Watch no more. Calling it again does nothing."""
        undo_all(self._undo)
        native.unhook(self._leave)
        native.unhook(self._filled)
        self._close_building()

    def facts(self) -> dict[str, Any]:
        """Return the facts as the document has them, with times of the monotonic clock."""
        building = self._building
        return {
            "watched_ns": self._watched_ns,
            "program_ns": self.program_ns,
            "intervals": [*self._intervals, *([] if building is None else [dict(building)])],
            "short_ns": dict(self._short_ns),
            "lost": self._lost,
            "not_seen": self._not_seen,
        }

    def _when(
        self, module: str, path: str, part: str, enter: Callable[..., Any], leave: Any = None
    ) -> None:
        def hook() -> None:
            function: Any = sys.modules[module]
            for name in path.split("."):
                function = inspect.getattr_static(function, name, None)
            self._hook(getattr(function, "__func__", function), part, enter, leave)

        self._undo.append(when_imported(module, hook))

    def _hook(self, function: Any, part: str, enter: Callable[..., Any], leave: Any = None) -> None:
        inner = inspect.unwrap(function) if function is not None else None
        from_c = inner is not function  # the decorator's calls it as `function(*args)`
        with contextlib.suppress(Exception):
            leave = leave or self._leave
            if native.hook_call(inner, _NEVER, enter=enter, leave=leave, from_c=from_c):
                return
        if part not in self._not_seen:
            self._not_seen.append(part)

    # Calls

    def _is_of_startup(self) -> bool:
        """Return whether a call is one of the thread and process that start up. Ends the watch
        after the first step."""
        if os.getpid() != self._pid:
            return False
        # On whatever thread: as long as calls are observed, the watchdog takes them for progress.
        if native.open_place()[1] > 0:
            self.end()
            return False
        return threading.get_ident() == self._thread

    def _beginning(self, part: str) -> Callable[..., Any]:
        def begins(args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> list[Any] | None:
            if not self._is_of_startup():
                return None
            if not self._open:
                self._close_building()
            self._open += 1
            name = type(args[0]).__name__ if part == OPTIMIZER and args else ""
            return [part, name, time.monotonic_ns()]

        return begins

    def _import_begins(self, args: tuple[Any, ...], _: object) -> list[Any] | None:
        is_inner = self._imports and threading.get_ident() == self._thread
        if not is_inner and not self._is_of_startup():
            return None
        entry = [IMPORT, str(args[0]), time.monotonic_ns()]
        self._imports.append(entry)
        return entry

    def _ends(self, token: Any, args: tuple[Any, ...], succeeded: bool) -> None:
        now_ns = time.monotonic_ns()
        if isinstance(token, dict):
            token["end_ns"] = now_ns
            return
        if token[0] == IMPORT:
            self._import_ends(token, now_ns)
            return
        self._open -= 1
        part, name, begin_ns = token
        self._note(part, name, begin_ns, now_ns, _KEPT_NS)

    def _import_ends(self, entry: list[Any], now_ns: int) -> None:
        while self._imports and self._imports.pop() is not entry:
            pass
        if not self._imports:
            _, name, begin_ns = entry
            self._note(IMPORT, name, begin_ns, now_ns, _KEPT_IMPORT_NS)

    def _note(self, part: str, name: str, begin_ns: int, end_ns: int, kept_ns: int) -> None:
        if end_ns - begin_ns < kept_ns or len(self._intervals) >= MOST_INTERVALS:
            self._lost += end_ns - begin_ns >= kept_ns  # there are too many
            # Else it is a part of that, or of the first step.
            if not self._open and self._building is None and native.open_place()[1] < 0:
                self._short_ns[part] = self._short_ns.get(part, 0) + end_ns - begin_ns
            return
        place = _program_line(sys._getframe(1))
        noted = {"part": part, "name": name[:MOST_TEXT], "begin_ns": begin_ns, "end_ns": end_ns}
        self._intervals.append({**noted, **place})

    # Modules of torch. Nothing tells when the outermost constructor ends, so the last of what
    # happens inside of it does: modules and values of parameters that are made.

    def _module_begins(self, args: tuple[Any, ...], _: object) -> dict[str, Any] | None:
        if not self._is_of_startup():
            return None
        now_ns = time.monotonic_ns()
        if self._building is None or now_ns - self._building["end_ns"] >= _GAP_NS:
            self._close_building()
            frame: FrameType | None = sys._getframe(1)
            while frame is not None and frame.f_code.co_name == "__init__":
                frame = frame.f_back
            noted = {"part": MODEL, "name": type(args[0]).__name__[:MOST_TEXT]}
            times = {"begin_ns": now_ns, "end_ns": now_ns}
            self._building = {**noted, **times, **_program_line(frame)}
        return self._building

    def _filling_begins(self, args: tuple[Any, ...], _: object) -> dict[str, Any] | None:
        building = self._building
        if building is None or time.monotonic_ns() - building["end_ns"] >= _GAP_NS:
            return None
        return building if self._is_of_startup() else None

    def _filling_ends(self, building: dict[str, Any], _: object, __: object) -> None:
        building["end_ns"] = time.monotonic_ns()

    def _close_building(self) -> None:
        building, self._building = self._building, None
        if building is not None and len(self._intervals) < MOST_INTERVALS:
            self._intervals.append(building)


def _leave_out() -> None:
    """Have Dynamo compile none of this: hooked functions call it where a graph breaks."""
    dynamo.leave_out(sys.modules[__name__])


def _program_line(frame: FrameType | None) -> dict[str, Any]:
    """The innermost line of the program; without one, that of the library which called."""
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(("<", OWN_FOLDER)):
            if not is_installed(file):
                return {"file": file[-MOST_TEXT:], "line": frame.f_lineno}
            library = library or {"file": file[-MOST_TEXT:], "line": frame.f_lineno}
        frame = frame.f_back
    return library or {}


def process_began_ns() -> int | None:
    """Return when the system started this process, by the monotonic clock, to some hundredths of a
    second."""
    try:
        with open("/proc/self/stat", "rb") as file:
            # Behind the name, which may hold anything.
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * 10**9 // os.sysconf(
            "SC_CLK_TCK"
        )
        return time.monotonic_ns() - age_ns
    except (OSError, ValueError, IndexError, AttributeError):
        return None
