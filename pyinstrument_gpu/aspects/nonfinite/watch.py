# SPDX-License-Identifier: Apache-2.0
"""The watch that has the values of steps checked during one recording, and may stop the program.

The loss of every step is looked at, and modules and gradients in as many steps as the option says.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.aspects.nonfinite import MOST_TEXT, NAME
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher
from pyinstrument_gpu.errors import NonFiniteError
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import undo_all, when_imported
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.aspects.nonfinite.step_check import Call, StepCheck

_RESULT = 6  # patching.hooks.QuickCheck, which needs torch
_USUAL_EVERY = 100
_PATIENCE_S = 0.5
_MOST_WAITING = 4
"""Steps whose values have not arrived. What comes then is not checked."""


class NonfiniteWatch(Watcher):
    """The watch on values that are not finite during one recording.

    Args:
        every: all modules are checked in one of so many steps, beginning with the first; True: in
            one of 100.
        stops: whether the program is to end once an origin is known.
    """

    name = NAME

    def __init__(self, every: int, stops: bool) -> None:
        self._every = _USUAL_EVERY if every is True else every
        self._stops = stops
        self._leave = self._leaves  # one object each, by which the hooks are known
        self._leave_module = self._leaves_module
        self._undo: list[Callable[[], None]] = []
        self._why_unknown = "the program has not imported torch"
        self._step: StepCheck | None = None
        self._waiting: deque[StepCheck] = deque()
        self._pool: list[Any] = []
        self._counts = {"checked_steps": 0, "lost_steps": 0, "unknown_values": 0}
        self._search: Any = None
        self._new_check: Any = None
        self._until_next = 0
        self._thread = 0

    def begin(self, recording: ActiveRecording) -> None:
        """Check steps from the next one on, or from when there is torch."""
        super().begin(recording)
        self._undo.append(when_imported("torch", self._start))
        self._undo.append(when_imported("torch.amp.grad_scaler", self._hook_scaler))

    def end(self) -> None:
        undo_all(self._undo)
        native.unhook(self._leave)
        native.unhook(self._leave_module)
        with contextlib.suppress(Exception):
            self._end_step()
            deadline_s = time.monotonic() + _PATIENCE_S
            while self._judge() and time.monotonic() < deadline_s:
                time.sleep(0.001)
        super().end()
        self._pool, self._step = [], None

    def document(self) -> dict[str, Any]:
        facts: dict[str, Any] = {**self._counts, "why_unknown": self._why_unknown[:MOST_TEXT]}
        facts["lost_steps"] += len(self._waiting)
        if self._search is not None:
            facts["scaled_overflows"] = self._search.scaled_overflows
            if self._search.origin is not None:
                import msgspec

                facts["origin"] = msgspec.to_builtins(self._search.origin)
        return facts

    def _start(self) -> None:
        """Start, as torch is there."""
        try:
            with OwnImports():
                from torch.autograd import Variable

                from pyinstrument_gpu.aspects.nonfinite import origin, step_check
                from pyinstrument_gpu.patching import dynamo, hooks

            dynamo.leave_out(sys.modules[__name__], step_check)
            hooks.look_at_torch()
            self._search, self._new_check = origin.OriginSearch(), step_check.StepCheck
            run_backward = type(Variable._execution_engine).run_backward
            if not native.hook_call(run_backward, 0, enter=self._enters, leave=self._leave):
                raise RuntimeError("backward passes can't be observed")
            native.call_before_step(self._next_step)
            self._why_unknown = "no step began after torch was imported"
        except Exception as error:  # it is in the middle of the program's import
            self._why_unknown = f"this version of torch is not built as expected ({error!r})"

    def _hook_scaler(self) -> None:
        with contextlib.suppress(Exception):
            scale = sys.modules["torch.amp.grad_scaler"].GradScaler.scale
            native.hook_call(scale, 0, enter=self._scales, leave=self._leave)

    def _scales(self, args: tuple[Any, ...], kwargs: object) -> None:
        if self._step is not None and args[0].is_enabled():
            self._step.is_scaled = True

    # Between steps

    def _next_step(self) -> None:
        if not self.is_on:
            return
        was_watched = native.in_watched_call()
        native.set_in_watched_call(True)  # what is done here is none of the program's
        try:
            self._why_unknown, self._thread = "", threading.get_ident()
            self._begin_step()
            native.call_before_step(self._next_step)
        except Exception as error:
            self._why_unknown = f"a step could not be checked ({error!r})"
        finally:
            native.set_in_watched_call(was_watched)

    def _begin_step(self) -> None:
        self._end_step()
        self._judge()
        origin = self._search.origin
        if origin is not None and origin.where != "unchecked":
            return  # what comes of it says no more
        is_whole = self._until_next <= 0 and len(self._waiting) < _MOST_WAITING
        self._step = self._new_check(self._pool, is_whole)
        self._until_next -= 1
        if is_whole:
            self._until_next = self._every - 1
            enter, leave = self._enters_module, self._leave_module
            call = sys.modules["torch"].nn.Module.__call__
            if not native.hook_call(call, _RESULT, enter=enter, leave=leave, from_c=True):
                raise RuntimeError("calls of modules can't be observed")

    def _end_step(self) -> None:
        """End the open step, which is over, or was a while ago."""
        step, self._step = self._step, None
        if step is None:
            return
        native.unhook(self._leave_module)
        if step.index < 0:  # nothing was looked at, as in a step that was taken back
            self._until_next = 0 if step.is_whole else self._until_next
            return
        if len(self._waiting) < _MOST_WAITING and step.measurements.send():
            self._waiting.append(step)
        else:
            self._counts["lost_steps"] += 1

    def _judge(self) -> bool:
        """Judge the steps whose values have arrived. Returns whether there are others."""
        while self._waiting and self._waiting[0].measurements.are_here:
            step = self._waiting.popleft()
            values = step.measurements.read()
            self._counts["checked_steps"] += step.is_whole
            self._counts["unknown_values"] += step.measurements.unknown
            before = self._search.origin
            self._search.judge(step, values)
            if self._search.origin is not before:
                self._until_next = 0  # of a step that was not checked the next one may tell more
                if self.is_on:
                    self.write()
        return bool(self._waiting)

    # In a step

    def _is_open(self, step: StepCheck) -> bool:
        """Return whether the step goes on: what comes between it and the next is none of it."""
        index = native.open_place()[1]
        step.index = index if step.index < 0 else step.index
        return index >= 0 and index == step.index

    def _enters(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        """Note that a backward pass begins."""
        origin = self._search.origin
        is_own = self.is_on and self._thread == threading.get_ident()
        if self._stops and is_own and origin is not None:
            self._stops = False
            raise NonFiniteError(f"{origin.text}; --stop-on-nonfinite asked for this end")
        step = self._step
        if step is None or not self.is_on or not self._is_open(step):
            return None
        return step.backward_begins(*args[1:3]) or None  # as torch.autograd.graph calls it

    def _leaves(self, handles: Any, args: object, succeeded: object) -> None:
        for handle in handles:
            handle.remove()

    def _enters_module(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Any:
        step = self._step
        if step is None or not self._is_open(step):
            return None
        call = step.enters(args[0], [*args[1:], *(kwargs or {}).values()])
        return None if call is None else (step, call)

    def _leaves_module(self, token: tuple[StepCheck, Call], args: object, result: Any) -> None:
        step, call = token
        step.leaves(call, result)


def watcher(options: Any) -> Watcher:
    return NonfiniteWatch(options.nonfinite, options.stop_on_nonfinite)
