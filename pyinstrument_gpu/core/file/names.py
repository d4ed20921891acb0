# SPDX-License-Identifier: Apache-2.0
"""Names of phases, metrics and threads, and the paths of phases."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Blocks, BlockType, true_prefix
from pyinstrument_gpu.core.file.cursor import Cursor
from pyinstrument_gpu.core.file.items import NONE, PATH_ITEM
from pyinstrument_gpu.core.paths import join_paths
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.errors import RunFileDamagedError

_NATIVE_ID = struct.Struct("<Q")


_KIND_SHIFT = 30
_NAME_MASK = (1 << _KIND_SHIFT) - 1


def decode_names(payload: memoryview) -> list[str]:
    return Cursor(payload, "NAMES").all(Cursor.text)


def decode_threads(payload: memoryview) -> list[Thread]:
    return Cursor(payload, "THREADS").all(_thread)


def _thread(cursor: Cursor) -> Thread:
    (native_id,) = cursor.numbers(_NATIVE_ID)
    return Thread(native_id, cursor.text())


def known_paths(items: NDArray[np.void], names: int) -> NDArray[np.void]:
    """The items of the PATHS log up to the first whose name is missing."""
    parents_stand_before = (items["parent"] == NONE) | (items["parent"] < np.arange(len(items)))
    if not parents_stand_before.all():
        raise RunFileDamagedError("a path of the run file does not come after its parent")
    parents = items["parent"][items["parent"] != NONE]
    if path_kinds(items)[parents].any():
        raise RunFileDamagedError("a path of the run file has a module for its parent")
    return items[: true_prefix(path_names(items) < names)]


def path_parents(items: NDArray[np.void]) -> NDArray[np.int64]:
    return np.where(items["parent"] == NONE, -1, items["parent"].astype(np.int64))


def path_names(items: NDArray[np.void]) -> NDArray[np.uint32]:
    """The names of PATHS items, without the kinds."""
    names: NDArray[np.uint32] = items["name"] & np.uint32(_NAME_MASK)
    return names


def path_kinds(items: NDArray[np.void]) -> NDArray[np.uint32]:
    """0 for paths of phases; for those of modules the `ModulePass`, plus 1."""
    kinds: NDArray[np.uint32] = items["name"] >> np.uint32(_KIND_SHIFT)
    return kinds


class LogTables:
    """The tables to which the items of a log refer, as far as they are known. They may grow.

    Attributes:
        names: of phases and modules.
        threads: in the order of their numbers.
        metric_names: likewise.
        path_names, path_parents, path_kinds: of each path; see `path_kinds`.
        paths: their texts. Those of modules are among them.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.threads: list[Thread] = []
        self.metric_names: list[str] = []
        self._items = np.empty(0, PATH_ITEM)
        self._set_paths()

    @property
    def is_phase(self) -> NDArray[np.bool_]:
        """True for paths of phases, false for those of modules."""
        phases: NDArray[np.bool_] = self.path_kinds == 0
        return phases

    def add(self, blocks: Blocks) -> None:
        """Add what is new.

        Raises:
            RunFileDamagedError: it makes no sense.
        """
        self.names += blocks.texts(BlockType.NAMES, decode_names, len(self.names))
        self.threads += blocks.texts(BlockType.THREADS, decode_threads, len(self.threads))
        self.metric_names += blocks.texts(
            BlockType.METRIC_NAMES, decode_names, len(self.metric_names)
        )
        first, items = blocks.records(BlockType.PATHS, PATH_ITEM)
        if len(items) and first == len(self._items):
            self._items = known_paths(np.append(self._items, items), len(self.names))
            self._set_paths()

    def _set_paths(self) -> None:
        self.path_names = path_names(self._items)
        self.path_parents = path_parents(self._items)
        self.path_kinds = path_kinds(self._items)
        self.paths = join_paths(self.names, self.path_parents, self.path_names)
