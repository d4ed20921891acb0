# SPDX-License-Identifier: Apache-2.0
"""`watch_syncs`: watch the places where the program makes the host wait for a device."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pyinstrument_gpu.native import IMPORT_ERROR, native
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.problems import not_seen, warn_of

if TYPE_CHECKING:
    from pyinstrument_gpu.aspects.syncs.preview.preview import Preview
    from pyinstrument_gpu.aspects.syncs.watch import SyncWatch

_active: Watching | None = None


class Watching:
    """The watch of the process; at most one is on.

    Args:
        as_if: count calls on tensors of the host as if they lay on a device.
    """

    def __init__(self, as_if: bool = False) -> None:
        self._as_if = as_if
        self._watch: Preview | SyncWatch | None = None
        self._withdraw: Callable[[], None] | None = None
        self._error: Exception | None = None

    def begin(self) -> None:
        """Watch, as soon as torch is imported. Nothing where another watch is on."""
        global _active
        if _active is None and IMPORT_ERROR is None:
            _active = self
            self._withdraw = when_imported("torch", self._install)
            self.tell_recording()

    def tell_recording(self) -> None:
        """Have the active recording know since when it is watched; for one that starts later."""
        if _active is self and self._error is None:
            native.sync_watch(True, self._as_if)
            if getattr(self._watch, "has_moved", False):  # of a preview, before the recording began
                native.sync_placed()

    def end(self) -> None:
        """Stop watching. Calling it again does nothing."""
        global _active
        if _active is not self:
            return
        _active = None
        native.sync_watch(False, self._as_if)
        if self._withdraw is not None:
            self._withdraw()
        if self._watch is not None:
            self._watch.remove()

    def problems(self) -> Iterator[str]:
        """Yield sentences about what went wrong."""
        if self._error is not None:
            yield f"syncs were not watched, because of an error: {self._error!r}"
        if self._watch is not None and self._watch.not_hooked:
            yield not_seen("waits", self._watch.not_hooked)

    def _install(self) -> None:
        try:
            self._watch_torch()
        except Exception as error:
            self._error = error
            if self._watch is not None:
                self._watch.remove()  # nothing stays half hooked
            native.sync_watch(False, self._as_if)

    def _watch_torch(self) -> None:
        # Here, as torch is needed to import them.
        from pyinstrument_gpu.aspects.syncs import watch

        if self._as_if:
            from pyinstrument_gpu.aspects.syncs.preview.preview import Preview

            self._watch = Preview()
        elif watch.can_wait():
            self._watch = watch.SyncWatch()
        else:
            return
        self._watch.install()


@contextlib.contextmanager
def watch_syncs(*, as_if_cuda: bool = False) -> Iterator[None]:
    """While the block runs, record where the program makes the host wait for a device, with file
    and line, kind, time and bytes: `run.syncs`.

    The recording must be active when the block begins. Inside another `watch_syncs`, and under
    `pyinstrument-gpu run`, nothing is done twice.

    Args:
        as_if_cuda: preview instead what would wait on a GPU, in a program that runs on a CPU. The
            duration of such waits is unknown.

    Cost: up to a microsecond for a call that does not wait, a few microseconds for one that does.
    Never synchronises.
    """
    watching = Watching(as_if_cuda)
    try:
        watching.begin()
        yield
    finally:
        watching.end()
        warn_of(*watching.problems())
