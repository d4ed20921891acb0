# SPDX-License-Identifier: Apache-2.0
"""Learns when torch.compile compiles while a recording goes on, and why.

Dynamo enters `callback_handler.install_callbacks(...)` around each compilation, on its thread. That
is observed in the handler itself, so the callbacks that are registered there stay as they are, and
`torch._dynamo.reset()`, which clears them, does not end it. Nothing is hooked before the program
has imported Dynamo, and nothing runs while nothing compiles.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from pyinstrument_gpu.aspects.compilations import MOST_LINES, MOST_TEXT, NAME
from pyinstrument_gpu.aspects.compilations.log import CompilationLog
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.patching import dynamo
from pyinstrument_gpu.patching.import_hook import undo_all, when_imported
from pyinstrument_gpu.patching.inductor import GraphHooks

_OBSERVED = "install_callbacks"


class _ObservedCompilation:
    """A context that torch enters around a compilation, observed. No error of ours gets out."""

    def __init__(self, manager: Any, watch: CompilationWatch, args: tuple[Any, ...]) -> None:
        self._manager = manager
        self._watch = watch
        self._args = args

    def __enter__(self) -> Any:
        entered = self._manager.__enter__()
        self._watch.begins(*self._args)
        return entered

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> Any:
        self._watch.ends()
        return self._manager.__exit__(kind, error, traceback)


class CompilationWatch(Watcher):
    """The watch on compilations during one recording.

    Args:
        clocks: as those of a `CompilationLog`.
        module: the name of Dynamo.
        marks: whether phases are marked in compiled code.
    """

    name = NAME

    def __init__(
        self,
        clocks: Callable[[], tuple[int, int]] | None = None,
        module: str = "torch._dynamo",
        marks: bool = False,
    ) -> None:
        self._clocks = clocks
        self._module = module
        self._log: CompilationLog | None = None
        self._unknown: str | None = None
        self._marks = marks
        self._unknown_phases: list[str] = []
        self._graphs = GraphHooks(marks, self._note)
        self._undo: list[Callable[[], None]] = []

    def begin(self, recording: ActiveRecording) -> None:
        """Look at each compilation from now on, or as soon as there can be one."""
        super().begin(recording)
        self._undo.append(when_imported(self._module, self._look))
        self._undo.append(self._graphs.end)
        self._graphs.begin()

    def end(self) -> None:
        undo_all(self._undo)
        super().end()

    def document(self) -> dict[str, Any]:
        log = self._log
        facts: dict[str, Any] = {} if log is None else log.facts()
        if self._unknown is not None:
            facts = {"unknown": self._unknown}
        unknown_phases = list(self._unknown_phases)
        why = dynamo.why_no_labels() if self._marks else None
        if why is not None:
            unknown_phases.append(why)
        if unknown_phases:
            facts["unknown_phases"] = unknown_phases
        return facts

    def begins(self, *args: Any) -> None:
        """Note that the calling thread begins to compile."""
        with contextlib.suppress(Exception):
            if self.is_on and self._log is not None:
                self._log.begins(*args)

    def ends(self) -> None:
        """Note that torch is done with what it last began."""
        with contextlib.suppress(Exception):
            if self._log is not None and self._log.ends() and self.is_on:
                self.write()

    def _note(self, why: str) -> None:
        """Note why phases are not known of compiled code."""
        known = self._unknown_phases
        if why[:MOST_TEXT] not in known and len(known) < MOST_LINES - 1:
            known.append(why[:MOST_TEXT])

    def _look(self) -> None:
        """Hook Dynamo, which is there now. Versions that are built otherwise leave this unknown."""
        try:
            self._log = CompilationLog(sys.modules[f"{self._module}.utils"], self._clocks)
            self._observe(sys.modules[self._module].callback_handler)
        except Exception as error:
            self._log = None
            reason = f"this version of torch is not built as expected ({error!r})"
            self._unknown = reason[:MOST_TEXT]

    def _observe(self, handler: Any) -> None:
        install, before = getattr(handler, _OBSERVED), vars(handler).get(_OBSERVED)

        def install_callbacks(*args: Any, **options: Any) -> Any:
            told = (*args, *options.values())
            return _ObservedCompilation(install(*args, **options), self, told)

        def undo() -> None:
            # Unless somebody else has put something in its place, which calls it.
            if vars(handler).get(_OBSERVED) is install_callbacks:
                delattr(handler, _OBSERVED)
                vars(handler).update({} if before is None else {_OBSERVED: before})

        setattr(handler, _OBSERVED, install_callbacks)
        self._undo.append(undo)


def watcher(options: Any) -> Watcher:
    return CompilationWatch(marks=options.compiled_phases)
