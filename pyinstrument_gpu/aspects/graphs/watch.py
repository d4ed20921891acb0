# SPDX-License-Identifier: Apache-2.0
"""Sees when CUDA graphs are captured and replayed, by the methods of torch.cuda.CUDAGraph.

torch.cuda.graph, make_graphed_callables and the graphs of torch.compile all call these. A replay is
noted before it is launched, so that its step is known however late the device comes to it. Replays
are counted from the capture to the end of the process: once a graph has marks the hooks stay.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.aspects.graphs import NAME
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import torch_with_cuda, when_imported


class _Hooks:
    """The hooks of one class of graphs, and the numbers of its graphs that have marks."""

    def __init__(self, graph_class: type) -> None:
        self.graph_class = graph_class
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._captures: weakref.WeakKeyDictionary[Any, tuple[int, int]] = (
            weakref.WeakKeyDictionary()
        )
        self._leave = self._ends  # one object, by which they are taken back

    def install(self) -> bool:
        """Install the hooks; return whether all are built as expected; otherwise none is left."""
        methods = vars(self.graph_class)
        # As of torch 2.14, `capture_end` has parts, which may be called by themselves.
        ends = [name for name in ("capture_end_pre",) if name in methods] + ["capture_end"]
        for name, enter in (
            ("capture_begin", self._capture_begin),
            *((end, self._capture_end) for end in ends),
            ("replay", self._replay),
            ("reset", self._reset),
        ):
            if not native.hook_call(methods.get(name), 0, enter=enter, leave=self._leave):
                native.unhook(self._leave)
                return False
        return True

    def remove(self) -> bool:
        """Take them back, unless graphs with marks are there still. Returns whether it has."""
        if len(self._numbers):
            return False
        native.unhook(self._leave)
        return True

    # What is called at the begin of a call; the token says what is done at its end.

    def _capture_begin(self, args: tuple[Any, ...], _: object) -> tuple[str, Any] | None:
        torch = torch_with_cuda()
        if torch is not None:
            native.attach_device(getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))
        native.prepare_graph_capture()
        return "capture_begin", args[0]

    def _capture_end(self, args: tuple[Any, ...], _: object) -> tuple[str, Any] | None:
        return ("capture_end", args[0]) if args[0] in self._captures else None

    def _replay(self, args: tuple[Any, ...], _: object) -> tuple[str, int] | None:
        number = self._numbers.get(args[0])
        if number is None or not native.graph_replay_begins(number):
            return None
        return "replay", number

    def _reset(self, args: tuple[Any, ...], _: object) -> None:
        self._numbers.pop(args[0], None)

    def _ends(self, token: tuple[str, Any], _: object, succeeded: bool) -> None:
        call, of = token
        if call == "replay":
            if not succeeded:
                native.graph_replay_failed(of)
        elif call == "capture_begin":
            self._numbers.pop(of, None)
            capture = native.graph_capture_begins() if succeeded else None
            if capture is not None:
                self._captures[of] = capture
        elif (capture := self._captures.pop(of, None)) is not None:
            number = native.graph_capture_ends(capture, succeeded=succeeded)
            if number is not None:
                self._numbers[of] = number


_hooks: _Hooks | None = None


class GraphWatch(Watcher):
    """The watch that has the hooks installed while one recording goes on."""

    name = NAME

    def __init__(self) -> None:
        self._withdraw: Callable[[], None] | None = None
        self._unknown = ""

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self._withdraw = when_imported("torch", self._look)

    def document(self) -> dict[str, str]:
        return {"failure": self._unknown} if self._unknown else {}

    def end(self) -> None:
        global _hooks
        withdraw, self._withdraw = self._withdraw, None
        if withdraw is not None:
            withdraw()
            if _hooks is not None and _hooks.remove():
                _hooks = None
        super().end()

    def _look(self) -> None:
        global _hooks
        try:
            torch: Any = sys.modules["torch"]
            graph_class = torch.cuda.CUDAGraph
            if _hooks is not None and _hooks.graph_class is graph_class:
                return
            if not torch.backends.cuda.is_built():
                return
            hooks = _Hooks(graph_class)
            if hooks.install():
                _hooks = hooks
            else:
                self._unknown = "this version of torch is not built as expected"
        except Exception as error:  # something that stands in for torch
            self._unknown = f"this version of torch is not built as expected ({error!r})"


def watcher(options: object) -> Watcher:
    return GraphWatch()
