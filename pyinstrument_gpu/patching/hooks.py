# SPDX-License-Identifier: Apache-2.0
"""Hooks of functions of torch that are written in C, or that a slot of a type calls.

Nothing that a program can see is replaced: the hooks lie below the Python objects (csrc/hooks/
method_hook.cpp, vectorcall_hook.cpp, subscript_hook.cpp). So classes that look functions up, modes,
pickle, torch.compile and torch.jit find what they know.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch

from pyinstrument_gpu.native import native

Arguments = tuple[Any, ...]
Options = dict[str, Any]
Enter = Callable[[Arguments, Options | None], Any]
"""Called when a call begins, with its arguments, `self` first, and its keywords. Returns a token,
or None where the call is of no interest."""
Leave = Callable[[Any, Arguments, bool], object]
"""Called when that call ends, with the token, the arguments, and whether it raised no exception."""


class QuickCheck(enum.IntEnum):
    """A way to see from the arguments of a call that no listener needs it: no device is touched.
    csrc/hooks/call_listener.h has the same numbers."""

    NEVER = 0
    FIRST = 1  # its first argument is a tensor of the host
    ONLY = 2  # as FIRST, or it has other arguments
    ARGUMENTS = 3  # all are tensors of the host or plain numbers
    TO = 4  # a tensor of the host, and a dtype or the CPU
    INDEX = 5  # an index of numbers, slices and tensors of the host
    RESULT = 6  # as NEVER, and `leave` is given what the call returns, False where it raised


def look_at_torch() -> None:
    """Have the native module find out how to look at tensors, and what torch does, if it hasn't."""
    with torch._C.DisableTorchFunction():  # no mode should see these two
        probes = [torch.empty(0, device=device) for device in ("cpu", "meta")]
    native.look_at_torch(
        tensor=torch.Tensor,
        parameter=torch.nn.Parameter,
        on_host=probes[0],
        on_meta=probes[1],
        compiler_names=vars(torch.compiler),
        graph_task_id=torch._C._current_graph_task_id,
    )


class Hooks:
    """The hooks of one listener, which are taken back together.

    Args:
        leave: what is called at the end of all calls.

    Attributes:
        not_hooked: functions that are not built as the hooks expect. Their calls are not seen.
    """

    def __init__(self, leave: Leave) -> None:
        self._leave = leave
        self.not_hooked: list[str] = []
        look_at_torch()

    def method(self, name: str, quick_check: QuickCheck, enter: Enter) -> None:
        """Hook a method of tensors. Nothing where there is none: versions of torch differ."""
        method = vars(torch._C.TensorBase).get(name)
        self._hook(f"torch.Tensor.{name}", method, quick_check, enter)

    def function(self, owner: Any, name: str, quick_check: QuickCheck, enter: Enter) -> None:
        """Hook a builtin function, one in Python, or a method that pybind11 has made."""
        function = getattr(owner, name, None)
        self._hook(f"{owner!r}.{name}", getattr(function, "__func__", function), quick_check, enter)

    def subscripts(self, quick_check: QuickCheck, enter_get: Enter, enter_set: Enter) -> None:
        """Hook indexing of tensors."""
        base = torch._C.TensorBase
        if not native.hook_subscripts(
            base, int(quick_check), enter_get=enter_get, enter_set=enter_set, leave=self._leave
        ):
            self.not_hooked.append("indexing of torch.Tensor")

    def remove(self) -> None:
        """Take all of them back. Calling it again does nothing."""
        native.unhook(self._leave)

    def _hook(self, name: str, function: Any, quick_check: QuickCheck, enter: Enter) -> None:
        if function is not None and not native.hook_call(
            function, int(quick_check), enter=enter, leave=self._leave
        ):
            self.not_hooked.append(name)
