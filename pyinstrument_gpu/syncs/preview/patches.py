# SPDX-License-Identifier: Apache-2.0
"""Attributes of other people's modules and classes, replaced for a time.

Taking a patch back leaves the very object that was there. Where somebody else has patched the same
attribute since, ours stays under theirs, calls through, and goes as soon as theirs has gone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

_ABSENT = object()

_waiting: list[_Patch] = []
"""Patches that have been taken back, in the order in which they were made, and lie under others."""


class _Patch:
    def __init__(self, owner: Any, name: str, replacement: object) -> None:
        self._owner = owner
        self._name = name
        # In the owner's own dictionary: what a class inherits must not become its own.
        self._before = vars(owner).get(name, _ABSENT)
        self._replacement = replacement
        setattr(owner, name, replacement)

    def restore(self) -> bool:
        """Put back what was there, if ours is what stands there now."""
        if vars(self._owner).get(self._name, _ABSENT) is not self._replacement:
            return False
        if self._before is _ABSENT:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)
        return True


def _name(replacement: Any, owner: Any, name: str) -> None:
    """Have `pickle` find the replacement where it stands. A function of C is pickled by other
    means, and has a name that leads nowhere."""
    if inspect.isfunction(replacement) and not inspect.isfunction(
        getattr(replacement, "__wrapped__", replacement)
    ):
        replacement.__module__ = owner.__module__ if inspect.isclass(owner) else owner.__name__
        replacement.__qualname__ = (
            f"{owner.__qualname__}.{name}" if inspect.isclass(owner) else name
        )


class Patches:
    """A set of patches that are taken back together."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._undo: list[Callable[[], None]] = []
        self.active = True
        """False once they have been taken back: a wrapper that somebody kept then calls through."""

    def wrap(self, owner: Any, name: str, wrap: Callable[[Any], Any], *others: Any) -> None:
        """Replace `owner.name` by `wrap(owner.name)`, and the same object in other owners under the
        same name. Nothing where there is no such attribute: versions of torch differ."""
        before = getattr(owner, name, None)
        if before is None:
            return
        replacement = wrap(before)
        _name(replacement, owner, name)
        for place in (owner, *others):
            if getattr(place, name, None) is before:
                self._patches.append(_Patch(place, name, replacement))

    def on_remove(self, undo: Callable[[], None]) -> None:
        """Call `undo` when the patches are taken back."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Take all of them back. Again: nothing."""
        self.active = False
        while self._undo:
            self._undo.pop()()
        _waiting.extend(self._patches)
        self._patches = []
        restored = True
        while restored:
            # Each from the newest may uncover the one below it.
            done = [patch for patch in reversed(_waiting) if patch.restore()]
            for patch in done:
                _waiting.remove(patch)
            restored = bool(done)
