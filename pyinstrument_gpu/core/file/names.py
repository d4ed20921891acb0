# SPDX-License-Identifier: Apache-2.0
"""Names of phases, metrics and threads, and the paths of phases."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import true_prefix
from pyinstrument_gpu.core.file.cursor import Cursor, encode_text
from pyinstrument_gpu.core.file.items import NONE
from pyinstrument_gpu.core.thread import Thread
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


def encode_thread(thread: Thread) -> bytes:
    return _NATIVE_ID.pack(thread.native_id) + encode_text(thread.name)


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
