# SPDX-License-Identifier: Apache-2.0
"""What the wrappers of one `auto_phases` share: which activity is going on, and whom to tell.

An activity (a forward pass, a backward pass, ...) is a phase. What it calls is part of it: inside a
forward pass no submodule is one of its own. An optimizer's step is the exception, as its closure
may run forward and backward passes; they nest in it, and are no step of the loop.

A wrapper calls through at once where it has nothing to say: inside an activity, which is a flag
that the native module keeps per thread; under torch.compile; once the patches are taken back. What
goes wrong on our side is kept in `error`, ends the placing of steps, and never reaches the program.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from pyinstrument_gpu.auto.step_detector import StepDetector
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching import warning_locations
from pyinstrument_gpu.patching.patches import Patches
from pyinstrument_gpu.recording import steps

if TYPE_CHECKING:
    from pyinstrument_gpu._C import Phase


class _Update(NamedTuple):
    """An optimizer's step that goes on."""

    phase: Phase
    token: int
    frame: FrameType


class _Inside(threading.local):
    """What the calling thread is in, beside an activity."""

    updates: tuple[_Update, ...] = ()  # outermost first


class Session:
    """One `auto_phases`, once torch is there.

    Attributes:
        detector: the state of the loop.
        patches: what has been replaced in torch.
        copies: number and bytes of the copies to a device, by whether the memory was pinned and the
            copy `non_blocking`.
        error: what went wrong on our side, or None.
    """

    def __init__(
        self,
        on_step_end: Callable[[], None] | None = None,
        on_own_step: Callable[[], None] | None = None,
    ) -> None:
        self.detector = StepDetector(native, on_step_end)
        self.patches = Patches()
        self._inside = _Inside()
        self.copies: dict[tuple[bool, bool], list[int]] = {}
        self.error: Exception | None = None
        self.is_in_backward = False
        self.updated_in_backward = False
        self._on_own_step = on_own_step
        steps.before_step = self._before_own_step
        warning_locations.install(self.patches)
        native.begin_activities()

    def remove(self) -> None:
        """Take all patches back and end the step that is open."""
        self.patches.remove()
        if steps.before_step == self._before_own_step:
            steps.before_step = None
        self.tell(self.detector.finish)

    def passes_by(self) -> bool:
        """Whether a wrapper has nothing to say. What Dynamo may trace asks `is_compiling` first."""
        return native.in_activity() or not self.patches.active

    def tell(self, what: Callable[..., None], *arguments: Any) -> None:
        """Tell the detector, which never raises into the program."""
        if self.error is None:
            try:
                what(*arguments)
            except Exception as error:
                self.error = error

    def begin(self, phase: Phase, announce: Callable[..., None] | None, *arguments: Any) -> int:
        """Begin an activity: tell the detector first, so that its phase is in the right step."""
        is_updating = self._inside.updates and self._is_updating()
        if announce is not None and not is_updating:
            self.tell(announce, *arguments)
        native.set_in_activity(True)
        return native.frame_begin(phase)

    def end(self, phase: Phase, token: int) -> None:
        native.set_in_activity(False)
        native.frame_end(phase, token)

    def begin_update(self, phase: Phase, optimizer: object, frame: FrameType) -> None:
        """An optimizer's step begins; `frame` is that of the function that will end it."""
        if not self._is_updating():
            self.tell(self.detector.begins_update, optimizer)
        self._inside.updates += (_Update(phase, native.frame_begin(phase), frame),)

    def end_update(self, optimizer: object) -> None:
        """It has ended, without an exception."""
        if self._inside.updates:
            self._end_innermost_update()
        if not self._inside.updates:
            self.tell(self.detector.ends_update, optimizer)

    def _is_updating(self) -> bool:
        # The hooks of an optimizer are not told of an exception in its step. Its function is then
        # no longer among the callers.
        callers = set()
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and self._inside.updates:
            callers.add(frame)
            frame = frame.f_back
        while self._inside.updates and self._inside.updates[-1].frame not in callers:
            self._end_innermost_update()
        return bool(self._inside.updates)

    def _end_innermost_update(self) -> None:
        *outer, update = self._inside.updates
        self._inside.updates = tuple(outer)
        native.frame_end(update.phase, update.token)

    def _before_own_step(self) -> None:
        self.tell(self.detector.leave_alone)
        if self._on_own_step is not None:
            self.tell(self._on_own_step)
