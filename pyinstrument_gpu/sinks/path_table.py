# SPDX-License-Identifier: Apache-2.0
"""The names and paths of a log as it grows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.file.blocks import Blocks, BlockType
from pyinstrument_gpu.core.file.items import PATH_ITEM
from pyinstrument_gpu.core.file.names import decode_names, path_kinds, path_names, path_parents
from pyinstrument_gpu.core.paths import join_paths


class PathTable:
    """What paths there are so far.

    Attributes:
        paths: of each its text; see `Run.paths`. Those of modules are among them.
        is_phase: which of them are phases, and not modules.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._items = np.empty(0, PATH_ITEM)
        self.paths: tuple[str, ...] = ()
        self.is_phase: NDArray[np.bool_] = np.empty(0, np.bool_)

    def take(self, blocks: Blocks) -> None:
        """Add what is new in the log."""
        self._names += blocks.texts(BlockType.NAMES, decode_names, len(self._names))
        items = blocks.records(BlockType.PATHS, PATH_ITEM).items
        if len(items):
            self._items = np.append(self._items, items)
            parents, names = path_parents(self._items), path_names(self._items)
            self.is_phase = path_kinds(self._items) == 0
            self.paths = join_paths(self._names, parents, names)
