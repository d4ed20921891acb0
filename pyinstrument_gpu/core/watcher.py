# SPDX-License-Identifier: Apache-2.0
"""Watchers: what is learnt in Python of the program while one recording goes on.

The recording goes over its watchers and names none of them. One more is a file of an aspect and a
row of pyinstrument_gpu/aspects/table.py.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeAlias, cast

from pyinstrument_gpu import plugins
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.own_imports import OwnImports

Members: TypeAlias = Callable[[str], "tuple[int, ...] | None"]
"""The ranks that are in a process group, by its name; None if that is unknown."""


class ActiveRecording(Protocol):
    """The part of a recording that a watcher which serves it may use.

    Attributes:
        facts: what joins the environment of the run at the end.
        watchers: those of this recording, by their names in the table.
    """

    facts: dict[str, Any]
    watchers: dict[str, Watcher]

    def note_step_number(self, number: int) -> None:
        """Note that the next step has this number in the whole training."""

    @property
    def path(self) -> Path | None:
        """The run file; None for a recording in memory."""


class Watcher:
    """Watches the program for one recording. A subclass overrides what it has something to do at.

    Attributes:
        name: of its document in the run file.
        threads: identifiers of its own threads, which are not the program's.
    """

    name: str = ""
    threads: Collection[int] = ()
    _recording: ActiveRecording | None = None

    @property
    def is_on(self) -> bool:
        """True while its recording goes on, and is that of this process: a fork has none."""
        return self._recording is not None and self._recording is native.owner()

    def first_facts(self) -> dict[str, Any]:
        """Return what the environment of the run has from its first block on, before `begin`."""
        return {}

    def begin(self, recording: ActiveRecording) -> None:
        """Begin, as the recording has: after `native.start`."""
        self._recording = recording

    def has_ranks(self, anchor: Mapping[str, int], members: Members) -> None:
        """Note that the program has a process group of several ranks, perhaps more than once.

        Args:
            anchor: the clocks when the recording began, as its environment has them.
        """

    def program_is(self, facts: Mapping[str, Any]) -> None:
        """Take what is known of the program by now: after a second, then after twice as long each
        time. A thread of the native module calls this. It must not raise.

        Args:
            facts: by the names of the fields of `ProgramFacts`.
        """

    def stalled(self) -> None:
        """Note that the watchdog has noticed a stall. It must not raise."""

    def stall_facts(self) -> tuple[dict[str, Any], str]:
        """Return what it knows of a stall: for the run, and as the end of the user's sentence."""
        return {}, ""

    def document(self) -> Any:
        """Return the content of its document, as JSON has it; None or empty for no document."""
        return None

    def write(self) -> None:
        """Write what is known by now: somebody is about to read the run."""
        recording = self._recording
        document = None if recording is None else self.document()
        if document and recording is self._recording:  # it may have ended meanwhile
            native.set_document(recording, self.name, json.dumps(document).encode())

    def end(self) -> None:
        """Write the last of it and let go of the recording, before `native.stop`. A second call
        does nothing, also if it comes at once on another thread."""
        if self._recording is not None:
            self.write()
        self._recording = None


def active() -> ActiveRecording | None:
    """The recording of this process that has not ended."""
    owner: ActiveRecording | None = native.owner()
    return owner


def watchers_of(options: Any) -> dict[str, Watcher]:
    """New watchers for a recording with these options, by the names of their aspects.

    The table of aspects is found by its name, as what it lists builds on this package.
    """
    with OwnImports():
        rows = importlib.import_module("pyinstrument_gpu.aspects.table").ASPECTS
        own = {
            row.package.rpartition(".")[2]: _module(row).watcher(options)
            for row in rows
            if row.watch and (not row.option or getattr(options, row.option))
        }
    added = {name: _of_plugin(name, options) for name in options.aspects if name not in own}
    return own | {name: watcher for name, watcher in added.items() if watcher is not None}


def _of_plugin(name: str, options: Any) -> Watcher | None:
    make = plugins.load("aspects", name, callable, "watch:watcher")
    try:
        watcher = None if make is None else make(options)
    except Exception as error:
        plugins.leave_out(name, f"watcher() raised {type(error).__name__}: {error}")
        return None
    return cast(Watcher, plugins.Guarded(name, watcher, Watcher())) if watcher else None


def _module(row: Any) -> Any:
    return importlib.import_module(f"{row.package}.{row.watch}")
