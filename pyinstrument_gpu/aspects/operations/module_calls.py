# SPDX-License-Identifier: Apache-2.0
"""Which module each thread was in at each moment of a window, and which node of autograd it made.

Global hooks of `torch.nn.Module` tell it, which are there during the window alone. Each notes the
time, and the number that the thread's next node of autograd will get: nodes are numbered as they
are made, so a module owns the numbers that were given out during its call. The backward pass runs
the nodes by these numbers, and needs no hook.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyinstrument_gpu.core.paths import without_indices


class ModuleChange(NamedTuple):
    """From this time, by the wall clock, and this number of a node on, a thread is in a module;
    None for none. `since_ns` is when the call of the module began."""

    time_ns: int
    sequence: int
    module: str | None
    since_ns: int


class ModuleTimeline:
    """The innermost module of each thread, by its system's number, at each moment."""

    def __init__(self, changes: Mapping[int, list[ModuleChange]]) -> None:
        self._changes = changes
        self._times = {t: [one.time_ns for one in of] for t, of in changes.items()}
        # Numbers ascend with the time.
        self._sequences = {t: [one.sequence for one in of] for t, of in changes.items()}

    def at(self, native_thread: int, time_ns: int) -> ModuleChange | None:
        """Since when a thread is in which module at a time."""
        place = bisect_right(self._times.get(native_thread, []), time_ns)
        return self._changes[native_thread][place - 1] if place else None

    def of_node(self, native_thread: int, sequence: int) -> str | None:
        """The module that made a node of autograd on a thread."""
        place = bisect_right(self._sequences.get(native_thread, []), sequence)
        return self._changes[native_thread][place - 1].module if place else None


class ModuleCalls:
    """Listens to the calls of modules, from `install` until `remove`.

    A hook costs about a microsecond. What fails in it is dropped: that call then has no module.
    """

    def __init__(self) -> None:
        self._changes: dict[int, list[ModuleChange]] = {}
        self._this_thread = _ThisThread()
        self._names: dict[int, str] = {}
        # Their modules must last as long as their addresses are names.
        self._roots: list[Any] = []
        self._remove: list[Callable[[], None]] = []

    def install(self) -> str | None:
        """Return why modules stay unknown, or None. torch must have been imported."""
        eval_frame: Any = sys.modules.get("torch._dynamo.eval_frame")
        # Code that Dynamo compiles looks at the global hooks: it would be compiled anew, and a
        # compiled module would warn of them. A backend of None is that of functions it leaves out.
        if eval_frame is not None and any(eval_frame.cached_backends.values()):
            return "the program uses torch.compile, and hooks of modules would have it compile anew"
        torch: Any = sys.modules["torch"]
        self._next_node = torch._C._autograd._get_sequence_nr
        module = torch.nn.modules.module
        before = module.register_module_forward_pre_hook(self._enter)
        self._remove.append(before.remove)
        after = module.register_module_forward_hook(self._leave, always_call=True)
        self._remove.append(after.remove)
        return None

    def remove(self) -> None:
        """Stop listening. Calling it again does nothing."""
        while self._remove:
            self._remove.pop()()

    def timeline(self) -> ModuleTimeline:
        return ModuleTimeline(self._changes)

    def _enter(self, module: Any, _: Any) -> None:
        try:
            stack = self._this_thread.stack
            if not stack and id(module) not in self._names:
                self._name(module)
            now_ns = time.time_ns()
            stack.append((id(module), self._names.get(id(module)), now_ns))
            self._note(now_ns)
        except Exception:
            return

    def _leave(self, module: Any, _: Any, __: Any) -> None:
        try:
            stack = self._this_thread.stack
            # A call inside it that was left by an exception may not have been seen.
            while stack and stack.pop()[0] != id(module):
                pass
            self._note(time.time_ns())
        except Exception:
            return

    def _note(self, now_ns: int) -> None:
        stack = self._this_thread.stack
        _, name, since_ns = stack[-1] if stack else (0, None, now_ns)
        change = ModuleChange(now_ns, self._next_node(), name, since_ns)
        self._changes.setdefault(self._this_thread.native_id, []).append(change)

    def _name(self, root: Any) -> None:
        """Name a module that was called by no other, and all inside it."""
        others = any(next(one.children(), None) is not None for one in self._roots)
        self._roots.append(root)
        own = type(root).__name__
        self._names[id(root)] = own
        # A second model's could be the same.
        prefix = f"{own}." if others else ""
        inside = [(prefix + name, module) for name, module in root.named_modules() if name]
        alike = Counter(without_indices(name) for name, _ in inside)
        for name, module in inside:
            group = without_indices(name)
            self._names.setdefault(id(module), group if alike[group] > 1 else name)


class _ThisThread(threading.local):
    def __init__(self) -> None:
        self.stack: list[tuple[int, str | None, int]] = []
        self.native_id = threading.get_native_id()
