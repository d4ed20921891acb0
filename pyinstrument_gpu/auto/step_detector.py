# SPDX-License-Identifier: Apache-2.0
"""Where one step ends and the next begins, told from what a training loop does.

    CLOSED ──item, zero_grad, forward──> WAITING ──backward, update──> TRAINING ──update──> UPDATED
       └────────────backward, update───────────────────^                                       │
       ^──────────────────────────── the loop has come back ───────────────────────────────────┘

A step that is WAITING may turn out to be none: what it held was for validation, or only looked at.
From the first backward pass on it is certain.

docs/honest-time.md has the rules. Only the training thread counts: the main thread, or the one that
first runs an optimizer elsewhere.
"""

from __future__ import annotations

import enum
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from threading import get_ident
from typing import Any

_UNKNOWN = math.nan
_BACKWARD = 0
"""Stands among the identities of optimizers for a backward pass that is an update."""


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

    Attributes:
        optimizer_seen: whether an optimizer has stepped. None where there was no update at all.
    """

    def __init__(self, port: Any, on_end: Callable[[], None] | None = None) -> None:
        self._port = port
        self._on_end = on_end
        self._state = _State.CLOSED
        self._token = 0
        self._thread = threading.main_thread().ident
        self._left_alone = False
        self.optimizer_seen: bool | None = None
        # Of the open step.
        self._feeders: list[object] = []  # the loaders that were asked for an item
        self._waiting_items = Counter[float]()  # by their samples, as there may be any number
        self._is_fetching = False
        self._was_cleared = self._was_run = self._was_evaluated = self._is_exhausted = False
        self._updated: set[int] = set()
        # Of the loop.
        self._returns_to_loader = True  # after the first update that follows an item
        self._had_unfed_steps = False
        self._updates_per_step = 0  # 0: no step has ended yet
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._trained_on: weakref.WeakSet[Any] = weakref.WeakSet()

    def knows(self, optimizer: object) -> None:
        """After an optimizer was made."""
        self._optimizers.add(optimizer)

    def starts_loader(self, loader: object) -> None:
        """A loop over a loader begins."""
        if not self._counts_here():
            return
        self._comes_back()
        # A loop that fetches ahead starts its loader again within a step. Any other has only looked
        # at what it fetched before.
        if self._state is _State.WAITING and not self._waits_with_items_of_the_loop():
            self._drop()

    def asks_for_item(self, loader: object, grad_enabled: bool) -> None:
        if not self._counts_here():
            return
        self._comes_back()
        self._is_fetching = grad_enabled
        if self._state is _State.WAITING:
            # What begins a step before its item is asked for does so each time, or it was not part
            # of the loop.
            began_without = not self._feeders and not self._had_unfed_steps
            was_evaluated = self._waiting_items and self._was_evaluated
            if not grad_enabled or began_without or was_evaluated:
                self._drop()
        if not grad_enabled:
            return
        if self._state is _State.CLOSED:
            self._open()
        if self._state is _State.WAITING and loader not in self._feeders:
            self._feeders.append(loader)

    def got_item(self, samples: float = _UNKNOWN) -> None:
        """After the loader has answered."""
        if not self._counts_here() or not self._is_fetching:
            return
        if self._state is _State.WAITING:
            self._waiting_items[samples] += 1
        elif self._state is _State.TRAINING:
            self._port.step_item(self._token, samples)

    def got_none(self, loader: object) -> None:
        """After the loader had no further item."""
        if not self._counts_here():
            return
        if self._state is _State.WAITING and not self._waits_with_items_of_the_loop():
            self._drop()
        elif self._state in (_State.WAITING, _State.TRAINING) and loader in self._feeders:
            self._is_exhausted = True
            self._port.step_note_update(self._token)

    def clears_gradients(self) -> None:
        """An optimizer or a module clears its gradients."""
        if not self._counts_here():
            return
        if self._was_cleared:
            self._end_if_done()
        if self._state is _State.CLOSED:
            self._open()
        if self._state is not _State.UPDATED:
            self._was_cleared = True

    def follows_update(self) -> None:
        """After gradients were clipped or cleared, or a scheduler has stepped: if that was after
        the update, then it belongs to it."""
        if self._counts_here() and self._state is _State.UPDATED:
            self._port.step_note_update(self._token)

    def copies_to_device(self) -> None:
        """A tensor goes to a device."""
        if self._counts_here() and self._end_if_done():
            self._open()

    def runs_forward(self) -> None:
        """A module that is being trained runs."""
        if not self._counts_here():
            return
        self._end_if_done()
        if self._state is _State.CLOSED:
            self._open()
        self._was_run = True

    def runs_backward(self) -> None:
        if self._counts_here():
            self._end_if_updated_by(_BACKWARD)
            self._end_if_done()
            self._make_certain()

    def ends_backward(self, has_updated: bool) -> None:
        """After a backward pass.

        Args:
            has_updated: whether optimizers have stepped in it. Where there is no optimizer, the
                program updates its parameters itself, which can't be seen, after each of them.
        """
        if not self._counts_here() or (self._optimizers and not has_updated):
            return
        self.optimizer_seen = bool(self.optimizer_seen) or has_updated
        self._has_updated(_BACKWARD)

    def evaluates(self) -> None:
        """A module runs that is not being trained."""
        if not self._counts_here():
            return
        if self._state is _State.UPDATED and self._all_have_updated():
            self._end(complete=True)
        elif self._state is _State.TRAINING and self._is_exhausted:
            self._end(complete=False, at_update=True)
        self._was_evaluated = True

    def begins_update(self, optimizer: object) -> None:
        """An optimizer's step, or one that a gradient scaler may leave out."""
        if not self._left_alone and self._state is _State.CLOSED:
            self._thread = get_ident()
        self._optimizers.add(optimizer)
        if self._counts_here():
            self._end_if_updated_by(id(optimizer))
            self._make_certain()

    def ends_update(self, optimizer: object) -> None:
        if self._counts_here():
            self.optimizer_seen = True
            self._has_updated(id(optimizer))

    def has_stepped(self, optimizer: object) -> None:
        """After an optimizer has stepped within the backward pass of the training thread, on any
        thread."""
        self._optimizers.add(optimizer)
        self._updated.add(id(optimizer))

    def finish(self) -> None:
        """The recording ends, or what is recorded is no longer ours to say."""
        if self._state is _State.WAITING:
            if self._waiting_items and self._was_run:
                self._make_certain()
            else:
                self._drop()
        if self._state is _State.UPDATED:
            self._end(complete=True, at_update=True)
        elif self._state is _State.TRAINING:
            self._end(complete=False, at_update=self._is_exhausted)

    def leave_alone(self) -> None:
        """The program opens a step itself: from here on it alone does."""
        if not self._left_alone:
            self.finish()
            self._left_alone = True

    def _counts_here(self) -> bool:
        return not self._left_alone and get_ident() == self._thread

    def _waits_with_items_of_the_loop(self) -> bool:
        """Whether what was fetched is for training: a step has trained on that loader before."""
        return (
            bool(self._waiting_items)
            and not self._was_evaluated
            and any(loader in self._trained_on for loader in self._feeders)
        )

    def _comes_back(self) -> None:
        """A loader is asked for something."""
        if self._state is _State.UPDATED:
            self._returns_to_loader |= bool(self._feeders)
            self._end(complete=True)
        elif self._state is _State.TRAINING and self._is_exhausted:
            self._end(complete=False, at_update=True)

    def _end_if_done(self) -> bool:
        """The loop goes on training after an update. With a loader, that may be to log something
        before the loop comes back, or the turn of another optimizer; the next update will tell.

        Returns whether the step has ended.
        """
        waits_for_loader = self._feeders and self._returns_to_loader
        if self._state is not _State.UPDATED or waits_for_loader or not self._all_have_updated():
            return False
        self._end(complete=True)
        return True

    def _end_if_updated_by(self, updater: int) -> None:
        """A step has at most one update of each optimizer."""
        if self._state is _State.UPDATED and updater in self._updated:
            self._returns_to_loader &= not self._feeders
            was_cleared = self._was_cleared
            self._end(complete=True)
            self._open()
            self._was_cleared = was_cleared  # by what the step before already has

    def _all_have_updated(self) -> bool:
        """Whether there are as many updates as in the step before, or at first one of each."""
        return len(self._updated) >= (self._updates_per_step or len(self._optimizers))

    def _has_updated(self, updater: int) -> None:
        self._updated.add(updater)
        self._state = _State.UPDATED
        self._port.step_note_update(self._token)

    def _make_certain(self) -> None:
        if self._state is _State.CLOSED:
            self._open()
        if self._state is _State.WAITING:
            self._state = _State.TRAINING
            for samples in self._waiting_items.elements() if self._waiting_items else [_UNKNOWN]:
                self._port.step_item(self._token, samples)
            self._trained_on.update(loader for loader in self._feeders if loader is not None)

    def _open(self) -> None:
        self._state = _State.WAITING
        self._waiting_items = Counter()
        self._was_cleared = self._was_run = self._was_evaluated = self._is_exhausted = False
        self._updated = set()
        self._token = self._port.step_begin()

    def _end(self, complete: bool, at_update: bool = False) -> None:
        self._had_unfed_steps |= not self._feeders
        self._updates_per_step = len(self._updated) or self._updates_per_step
        self._state = _State.CLOSED
        self._feeders = []
        self._port.step_end(self._token, complete, at_update)
        if self._on_end is not None:
            self._on_end()

    def _drop(self) -> None:
        self._state = _State.CLOSED
        self._feeders = []
        self._port.step_drop(self._token)
