# SPDX-License-Identifier: Apache-2.0
"""Attributes of other people's modules and classes, replaced for a time.

Taking a patch back leaves the very object that was there. Where somebody else has patched the same
attribute since, ours stays under theirs, calls through, and goes as soon as theirs has gone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any, ParamSpec, TypeVar

import torch

from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER

_P = ParamSpec("_P")
_T = TypeVar("_T")
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


class Patches:
    """A set of patches that are taken back together."""

    def __init__(self) -> None:
        self._patches: list[_Patch] = []
        self._undo = contextlib.ExitStack()

    def wrap(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        """Have calls of the function `owner.name` go to `call`, which is given that function and
        then the arguments. Nothing where there is none: versions of torch differ."""
        original = getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return call(original, *args, **kwargs)

        if not inspect.isfunction(original):
            # A function of C is pickled by other means, and has a name that leads nowhere. `pickle`
            # has to find ours where it stands.
            is_class = inspect.isclass(owner)
            replacement.__module__ = owner.__module__ if is_class else owner.__name__
            replacement.__qualname__ = f"{owner.__qualname__}.{name}" if is_class else name
        self._patches.append(_Patch(owner, name, replacement))

    def on_remove(self, undo: Callable[[], object]) -> None:
        """Call `undo` when the patches are taken back."""
        self._undo.callback(undo)

    def remove(self) -> None:
        """Take all of them back. Calling it again does nothing."""
        self._undo.close()
        _waiting.extend(self._patches)
        self._patches = []
        restored = True
        while restored:
            # Each from the newest may uncover the one below it.
            done = [patch for patch in reversed(_waiting) if patch.restore()]
            for patch in done:
                _waiting.remove(patch)
            restored = bool(done)


def unheard(default: _T, action: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Return what an action returns, or a default where it fails. No class of tensors and no mode
    of the program sees what it asks."""
    try:
        with torch._C.DisableTorchFunction():
            return action(*args, **kwargs)
    except Exception:
        return default


def keep_warning_locations(patches: Patches) -> None:
    """Have warnings name the line of the program, as they would without a wrapper in between: a
    function of torch that warns at its caller, in Python or in C++, finds a wrapper there."""
    patches.wrap(warnings, "_showwarnmsg", _show)  # what the interpreter calls


def _show(original: Callable[[Any], None], message: Any) -> None:
    if str(message.filename).startswith(OWN_FOLDER):
        # From the wrapper of this function on.
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and not _is_ours(frame):
            frame = frame.f_back
        while frame is not None and _is_ours(frame):
            frame = frame.f_back
        if frame is not None:
            message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno
    original(message)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(OWN_FOLDER)
