# SPDX-License-Identifier: Apache-2.0
"""The process groups of torch.distributed that a program has while it is recorded."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

from torch.distributed import distributed_c10d

from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.hooks import Arguments, Options, QuickCheck
from pyinstrument_gpu.patching.tensor_device import HOST_TYPES

_MOST_GROUPS = 1024
_MAKERS = ("init_process_group", "new_group")


def _enter(args: Arguments, kwargs: Options | None) -> int:
    """Return when a call begins."""
    return time.perf_counter_ns()


class ProcessGroups:
    """The process groups of one recording, as far as they are known.

    Groups are looked at when they are made, as a program may destroy them before its recording
    ends, and at any time by `look`.

    Args:
        tell: called when something new is known.

    Attributes:
        ranks: of the largest group; 0 if there was none.
        members: of each group, by its name, which ranks are in it.
        use_device: whether one has a backend for a device: that has streams of its own.
        rendezvous_ns: `ProgramFacts.rendezvous_ns`.
        may_be_missed: whether there may be a group of which nothing is known here: a function that
            makes one is not built as the hooks expect, or a group does not say what it is.
    """

    def __init__(self, tell: Callable[[], object]) -> None:
        self._tell = tell
        self._leave = self._has_made  # the same object each time: it tells whose hooks they are
        self._has_group = False
        self.ranks = 0
        self.members: dict[str, tuple[int, ...]] = {}
        self.use_device = False
        self.rendezvous_ns: int | None = None
        self.may_be_missed = False

    def install(self) -> None:
        self.look()
        self._has_group = bool(self.members)
        for name in _MAKERS:
            outer = getattr(distributed_c10d, name, None)
            # What is decorated is called by the decorator's function, as `function(*args)`.
            function: Any = inspect.unwrap(outer) if outer is not None else None
            if function is None or not native.hook_call(
                function,
                int(QuickCheck.NEVER),
                enter=_enter,
                leave=self._leave,
                from_c=function is not outer,
            ):
                self.may_be_missed = True

    def remove(self) -> None:
        """Take the hooks back. Calling it again does nothing."""
        native.unhook(self._leave)

    def _has_made(self, begin_ns: int, args: Arguments, succeeded: bool) -> None:
        took_ns = time.perf_counter_ns() - begin_ns
        is_first, self._has_group = not self._has_group, True
        self.look()
        if is_first and self.ranks > 1 and _connects_all_ranks():
            self.rendezvous_ns = took_ns
        self._tell()

    def look(self) -> None:
        """Look at the groups that there are."""
        try:
            world = distributed_c10d._world
            for group in list(world.pg_map):
                self.ranks = max(self.ranks, group.size())
                self.use_device |= any(one.type not in HOST_TYPES for one in group._device_types)
                name = world.pg_names.get(group, "")
                if name not in self.members and len(self.members) < _MOST_GROUPS:
                    self.members[name] = tuple(sorted(world.pg_group_ranks.get(group, ())))
        except Exception:
            self.may_be_missed = True


def _connects_all_ranks() -> bool:
    """Return whether making the default group makes all ranks meet, with each of its backends."""
    try:
        return "gloo" in distributed_c10d.get_backend_config()
    except Exception:
        return False
