# SPDX-License-Identifier: Apache-2.0
"""What `torch.save` and `torch.load` would copy between a device and the host.

A file that is written here has every storage on the CPU. Where they would have lain is remembered
by the file, for a `torch.load` without a `map_location`, which puts them back there.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torch import serialization

from pyinstrument_gpu.aspects.syncs.preview.device_argument import is_device
from pyinstrument_gpu.aspects.syncs.preview.patches import Patches, unheard
from pyinstrument_gpu.aspects.syncs.preview.placement import Placement
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.patching.program_frames import caller, is_of_program

_MAX_FILES = 256
_File = tuple[int, int]
"""Its device and inode, so that it may be renamed."""


class Checkpoints:
    """Follows storages into files and out of them.

    Args:
        record: notes a wait: its kind, the frame of the call and the bytes.
    """

    def __init__(
        self, placement: Placement, record: Callable[[SyncKind, FrameType, int], None]
    ) -> None:
        self._placement = placement
        self._record = record
        self._saved: dict[_File, list[bool]] = {}
        self._opened: _File | None = None
        self._saving: dict[int, bool] | None = None

    def install(self, patches: Patches) -> None:
        for name in ("_open_zipfile_writer", "_open_file_like"):
            patches.wrap(serialization, name, self._opening)
        for name in ("_save", "_legacy_save"):
            patches.wrap(serialization, name, self._writing)
        patches.wrap(serialization, "location_tag", self._tagging)
        patches.wrap(serialization, "_get_restore_location", self._restoring)

    def _opening(self, original: Callable[..., Any], file: Any, *args: Any) -> Any:
        opened = original(file, *args)
        self._opened = unheard(None, _identity, file)
        return opened

    def _writing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._saving = {}
        try:
            return original(*args, **kwargs)
        finally:
            unheard(None, self._keep)

    def _keep(self) -> None:
        if self._opened is not None and self._saving is not None:
            self._saved[self._opened] = list(self._saving.values())
            if len(self._saved) > _MAX_FILES:
                del self._saved[next(iter(self._saved))]
        self._saving = None

    def _tagging(self, original: Callable[..., Any], storage: Any) -> Any:
        """Of `location_tag`, which is asked of the storages in their order in the file, and again
        for each further tensor in one of them."""
        tag = original(storage)
        unheard(None, self._save, storage, sys._getframe(1))
        return tag

    def _save(self, storage: Any, frame: FrameType) -> None:
        saving = self._saving
        if saving is None or storage._cdata in saving:
            return
        is_there = saving[storage._cdata] = self._placement.holds(storage)
        if is_there:
            self._record(SyncKind.CPU, _outer(frame), storage.nbytes())

    def _restoring(self, original: Callable[..., Any], map_location: Any) -> Callable[..., Any]:
        """Of what makes the function that `torch.load` asks once for every storage."""
        restore: Callable[..., Any] = original(map_location)
        frame = _outer(sys._getframe(1))
        put = unheard(None, self._putting, map_location, frame)

        def restore_location(storage: Any, location: Any) -> Any:
            restored = restore(storage, location)
            if put is not None:
                unheard(None, put, restored)
            return restored

        return restore_location

    def _putting(self, map_location: Any, frame: FrameType) -> Callable[[Any], None]:
        """What puts the storages of a file, in their order."""
        saved: Iterator[bool | None] = itertools.repeat(None)
        is_moved = False
        if map_location is not None:
            undecided = is_of_program(frame) and not callable(map_location)
            is_moved = bool(
                is_device(
                    frame, self._placement, undecided=undecided, position=1, keyword="map_location"
                )
            )
            saved = itertools.repeat(is_moved)
        elif self._opened in self._saved:
            saved = iter(self._saved[self._opened])

        def put(storage: Any) -> None:
            is_there = next(saved, None)
            if is_there:
                self._record(SyncKind.H2D_PAGEABLE, frame, storage.nbytes())
            if is_moved:
                self._placement.put_storage(storage, True)
            else:
                self._placement.restore(storage, is_there)

        return put


def _identity(file: Any) -> _File:
    stat = os.fstat(file.fileno()) if hasattr(file, "fileno") else os.stat(file)
    return stat.st_dev, stat.st_ino


def _outer(frame: FrameType) -> FrameType:
    """The frame that called `torch.save` or `torch.load`."""
    frame = caller(frame)
    while frame.f_code.co_filename == serialization.__file__ and frame.f_back is not None:
        frame = caller(frame.f_back)
    return frame
