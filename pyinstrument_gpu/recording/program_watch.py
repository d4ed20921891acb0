# SPDX-License-Identifier: Apache-2.0
"""Facts that a recording learns of its program beside phases: `ProgramFacts`.

What nobody looked for, or could have missed, is left out.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pyinstrument_gpu.core.launcher import launcher_number
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.import_hook import when_imported
from pyinstrument_gpu.patching.own_imports import OwnImports
from pyinstrument_gpu.recording import loader_use

if TYPE_CHECKING:
    from pyinstrument_gpu.recording.process_groups import ProcessGroups
    from pyinstrument_gpu.recording.stream_watch import StreamWatch

_WITH_STREAMS = (
    *("PyNvVideoCodec", "cuda.core", "cudf", "cupy", "cvcuda", "faiss", "jaxlib", "kvikio"),
    *("numba.cuda", "nvidia.dali", "nvidia.nvimgcodec", "pycuda", "rmm", "tensorflow", "tensorrt"),
    *("torchcodec", "transformer_engine", "warp"),
)
"""Modules whose work on a GPU torch doesn't know of."""
_WITH_RANKS = ("bagua", "horovod", "mpi4py")
"""Modules by which processes train together without torch.distributed."""


class ProgramWatch:
    """A collector of facts while one recording goes on."""

    def __init__(self) -> None:
        self._tell: Callable[[], object] | None = None
        self._accelerator: str | None = None
        self._streams: StreamWatch | None = None
        self._groups: ProcessGroups | None = None
        self._looks_for_groups = False
        self._undo: list[Callable[[], None]] = []

    def begin(self, tell: Callable[[], object]) -> None:
        """Look, as soon as torch is imported.

        Args:
            tell: called, on any thread of the program, when something new is known. It must not
                raise.
        """
        self._tell = tell
        loader_use.begin()
        self._undo.append(when_imported("torch", self._watch_torch))

    def end(self) -> None:
        """Stop looking, and forget what is known. Again, or on another thread at once: nothing."""
        while self._undo:
            try:
                undo = self._undo.pop()
            except IndexError:
                break
            undo()
        self._tell = self._streams = self._groups = None

    @property
    def is_on(self) -> bool:
        return self._tell is not None

    def facts(self) -> dict[str, Any]:
        """Return what is known now, by the name of the field of `ProgramFacts`."""
        if self._groups is not None:
            self._groups.look()
        facts: dict[str, Any] = {"other_streams": self._other_streams(), "ranks": self._ranks()}
        if self._groups is not None:
            facts["rendezvous_ns"] = self._groups.rendezvous_ns
        known = {name: value for name, value in facts.items() if value is not None}
        return {**known, **loader_use.facts()}

    @property
    def has_ranks(self) -> bool:
        """True if there was a process group of several ranks."""
        return self._groups is not None and self._groups.ranks > 1

    def members(self, group: str) -> tuple[int, ...] | None:
        """The ranks that are in a process group, by its name; None unknown."""
        known = self._groups
        return None if known is None else known.members.get(group) or None

    def _other_streams(self) -> bool | None:
        streams, groups = self._streams, self._groups
        if streams is None:
            return None
        if self._accelerator is None:
            return False
        devices = native.devices_in_use()
        if streams.seen or devices > 1:
            return True
        if groups is not None and (groups.use_device or groups.ranks > 1):
            return True
        is_certain = (
            self._accelerator == "cuda"
            and self._sees_groups
            and not (streams.not_hooked or _is_loaded(_WITH_STREAMS))
            and (devices == 1 or not _may_use_several_devices())
        )
        return False if is_certain else None

    def _ranks(self) -> int | None:
        groups = self._groups
        known = launcher_number("WORLD_SIZE") or 0
        if groups is not None:
            known = max(known, groups.ranks)
        if known > 1:
            return known
        return 1 if (known or self._sees_groups) and not _is_loaded(_WITH_RANKS) else None

    @property
    def _sees_groups(self) -> bool:
        """True if every process group of the program would be known."""
        groups = self._groups
        return self._looks_for_groups and (groups is None or not groups.may_be_missed)

    def _watch_torch(self) -> None:
        if not isinstance(sys.modules["torch"], ModuleType):
            return  # something that stands in for it
        for watch in (_look_at_tensors, self._watch_streams, self._watch_distributed):
            # What fails is left unknown.
            with contextlib.suppress(Exception), OwnImports():
                watch()
        self._has_learnt()

    def _has_learnt(self) -> None:
        if self._tell is not None:
            self._tell()

    def _watch_streams(self) -> None:
        # Here, as torch is needed to import them.
        from pyinstrument_gpu.patching import dynamo, hooks, tensor_device
        from pyinstrument_gpu.recording import stream_watch

        self._accelerator = tensor_device.accelerator_type()
        streams = stream_watch.StreamWatch(self._has_learnt)
        if self._accelerator is not None:
            ours = (sys.modules[__name__], hooks, tensor_device, stream_watch)
            dynamo.leave_out(*ours)
            self._undo.append(streams.remove)
            streams.install()
        self._streams = streams

    def _watch_distributed(self) -> None:
        torch: Any = sys.modules["torch"]
        has_groups = torch.distributed.is_available()
        self._looks_for_groups = True
        if has_groups:
            self._undo.append(
                when_imported("torch.distributed.distributed_c10d", self._watch_groups)
            )

    def _watch_groups(self) -> None:
        self._looks_for_groups = False
        with contextlib.suppress(Exception):  # it may come in the middle of the program's import
            from pyinstrument_gpu.recording import process_groups

            self._groups = process_groups.ProcessGroups(self._has_learnt)
            self._undo.append(self._groups.remove)
            self._groups.install()
            self._looks_for_groups = True


def _look_at_tensors() -> None:
    # Here, as torch is needed to import it.
    from pyinstrument_gpu.patching import hooks

    hooks.look_at_torch()


def _is_loaded(names: tuple[str, ...]) -> bool:
    return any(name in sys.modules for name in names)


def _may_use_several_devices() -> bool:
    torch: Any = sys.modules["torch"]
    # Where it is initialised the count is known, and no driver is asked.
    return bool(torch.cuda.is_initialized() and torch.cuda.device_count() > 1)
