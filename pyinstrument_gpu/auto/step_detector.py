# SPDX-License-Identifier: Apache-2.0
"""Where one step ends and the next begins, told from what a training loop does.

    CLOSED ──data, zero_grad──> WAITING ──forward, backward──> TRAINING ──optimizer──> UPDATED
       └──────────forward, backward────────────^                                          │
       ^──────────────────────────── the loop has come back ──────────────────────────────┘

docs/honest-time.md has the rules. Only the training thread counts: the main thread, or the one that
first runs an optimizer elsewhere.
"""

from __future__ import annotations

import enum
import math
import threading
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any

_UNKNOWN = math.nan
_PATIENCE = 8


class _State(enum.Enum):
    CLOSED = enum.auto()
    WAITING = enum.auto()
    TRAINING = enum.auto()
    UPDATED = enum.auto()


class StepDetector:
    """The state of the loop. Its methods are called before the activity they name, or after it
    where they say so, and only for what is no part of another activity.

    Args:
        port: where steps are opened and closed: the native module's functions `step_...`.
        on_end: called after each step that ended, while none is open.
    """

    def __init__(self, port: Any, on_end: Callable[[], None] | None = None) -> None:
        self._port = port
        self._on_end = on_end
        self._state = _State.CLOSED
        self._token = 0
        self._thread = threading.main_thread().ident
        self._left_alone = False
        # Of the open step.
        self._feeder: object = None
        self._waiting_items: list[float] = []
        self._was_cleared = False
        self._was_evaluated = False
        self._is_exhausted = False
        self._updated: set[int] = set()
        # Of the loop.
        self._fed_by_loader = False  # the last step ended because a loader was asked
        self._unfed_steps = 0
        # By optimizer: updates of others since its own.
        self._missed: weakref.WeakKeyDictionary[object, int] = weakref.WeakKeyDictionary()
        self._evaluating: weakref.WeakSet[Any] = weakref.WeakSet()

    def knows(self, optimizer: object) -> None:
        self._missed.setdefault(optimizer, 0)

    def asks_for_item(self, loader: object, grad_enabled: bool) -> None:
        if not self._counts_here():
            return
        # What begins a step before its item is asked for does so each time, or it was not part of
        # the loop.
        never_unfed = self._feeder is None and not self._unfed_steps
        if self._state is _State.UPDATED:
            self._fed_by_loader = True
            self._end(complete=True)
        elif self._state is _State.TRAINING and self._is_exhausted:
            self._end(complete=False, at_update=True)
        elif self._state is _State.WAITING and (self._waiting_items or never_unfed):
            self._drop()
        if not grad_enabled or (loader is not None and loader in self._evaluating):
            return
        if self._state is _State.CLOSED:
            self._open()
        if self._state is _State.WAITING:
            self._feeder = loader

    def got_item(self, samples: float = _UNKNOWN) -> None:
        """After the loader has answered."""
        if not self._counts_here():
            return
        if self._state is _State.WAITING:
            self._waiting_items.append(samples)
        elif self._state is _State.TRAINING:
            self._port.step_item(self._token, samples)

    def got_none(self, loader: object) -> None:
        """After the loader had no further item."""
        if not self._counts_here():
            return
        if self._state is _State.UPDATED:
            self._fed_by_loader = True
            self._end(complete=True)
        elif self._state is _State.WAITING:
            self._drop()
        elif self._state is _State.TRAINING and loader is self._feeder:
            self._is_exhausted = True
            self._port.step_note_update(self._token)

    def clears_gradients(self) -> None:
        """An optimizer or a module clears its gradients."""
        if not self._counts_here():
            return
        if self._state is _State.UPDATED and self._was_cleared and self._all_have_stepped():
            self._end(complete=True)
        if self._state is _State.CLOSED:
            self._open()
        if self._state is not _State.UPDATED:
            self._was_cleared = True

    def copies_to_device(self) -> None:
        """A tensor goes to a device. In a loop without a loader that begins the next step."""
        if not self._counts_here():
            return
        is_next = self._feeder is None and self._all_have_stepped()
        if self._state is _State.UPDATED and is_next:
            self._end(complete=True)
            self._open()

    def runs_forward(self) -> None:
        """A module that is being trained runs."""
        # After the update of a loop with a loader it may be run once more to log something: the
        # backward pass will tell.
        if self._counts_here() and not (self._state is _State.UPDATED and self._fed_by_loader):
            self._trains()

    def runs_backward(self) -> None:
        if self._counts_here():
            self._trains()

    def evaluates(self) -> None:
        """A module runs that is not being trained."""
        if not self._counts_here():
            return
        if self._state is _State.UPDATED and self._all_have_stepped():
            self._end(complete=True)
        elif self._state is _State.TRAINING and self._is_exhausted:
            self._end(complete=False, at_update=True)
        self._was_evaluated = True

    def begins_update(self, optimizer: object) -> None:
        """An optimizer's step, or one that a gradient scaler may leave out."""
        if not self._left_alone and self._state is _State.CLOSED:
            self._thread = get_ident()
        if not self._counts_here():
            return
        if self._state in (_State.CLOSED, _State.WAITING):
            self._trains()
        if id(optimizer) in self._updated:
            self._count_missed()

    def ends_update(self, optimizer: object) -> None:
        if not self._counts_here():
            return
        self.has_stepped(optimizer)
        self._state = _State.UPDATED
        self._port.step_note_update(self._token)

    def has_stepped(self, optimizer: object) -> None:
        """After an optimizer has stepped within the backward pass of the training thread, on any
        thread, or outside of one."""
        self._missed[optimizer] = 0
        self._updated.add(id(optimizer))

    def ends_backward(self) -> None:
        """After a backward pass in which optimizers have stepped."""
        if self._counts_here():
            self._state = _State.UPDATED
            self._port.step_note_update(self._token)

    def finish(self) -> None:
        """The recording ends, or what is recorded is no longer ours to say."""
        if self._state is _State.UPDATED:
            self._end(complete=True, at_update=True)
        elif self._state is _State.TRAINING:
            self._end(complete=False, at_update=self._is_exhausted)
        elif self._state is _State.WAITING:
            self._drop()

    def leave_alone(self) -> None:
        """The program opens a step itself: from here on it alone does."""
        if not self._left_alone:
            self.finish()
            self._left_alone = True

    def _counts_here(self) -> bool:
        return not self._left_alone and get_ident() == self._thread

    def _trains(self) -> None:
        if self._state is _State.UPDATED and self._all_have_stepped():
            self._fed_by_loader = False
            self._end(complete=True)
        if self._state is _State.CLOSED:
            self._open()
        if self._state is _State.WAITING:
            self._state = _State.TRAINING
            for samples in self._waiting_items or [_UNKNOWN]:
                self._port.step_item(self._token, samples)
            if self._feeder is not None:
                self._evaluating.discard(self._feeder)

    def _all_have_stepped(self) -> bool:
        return all(
            id(optimizer) in self._updated or missed >= _PATIENCE
            for optimizer, missed in self._missed.items()
        )

    def _count_missed(self) -> None:
        for optimizer in list(self._missed):
            if id(optimizer) not in self._updated:
                self._missed[optimizer] += 1

    def _open(self) -> None:
        self._state = _State.WAITING
        self._feeder = None
        self._waiting_items = []
        self._was_cleared = self._was_evaluated = self._is_exhausted = False
        self._updated = set()
        self._token = self._port.step_begin()

    def _end(self, complete: bool, at_update: bool = False) -> None:
        if self._feeder is None:
            self._unfed_steps += 1
            self._count_missed()
        self._state = _State.CLOSED
        self._port.step_end(self._token, complete, at_update)
        if self._on_end is not None:
            self._on_end()

    def _drop(self) -> None:
        if self._was_evaluated and self._feeder is not None:
            self._evaluating.add(self._feeder)
        self._state = _State.CLOSED
        self._port.step_drop(self._token)
