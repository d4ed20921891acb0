# SPDX-License-Identifier: Apache-2.0
"""Reads the bytes of a document or of a log's block from front to back."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from pyinstrument_gpu.core.file.blocks import nonsense

_Item = TypeVar("_Item")
_TEXT_BYTES = struct.Struct("<H")


class Cursor:
    """A place in the bytes, which goes on with all that is read. Errors name the block `where`."""

    def __init__(self, data: bytes | memoryview, where: str) -> None:
        self._data = memoryview(data)
        self._where = where

    def numbers(self, layout: struct.Struct) -> Any:
        return layout.unpack(self.take(layout.size))

    def text(self, errors: str = "surrogatepass") -> str:
        """A text behind its length."""
        (length,) = self.numbers(_TEXT_BYTES)
        try:
            return str(self.take(length), "utf-8", errors)
        except UnicodeDecodeError as error:
            raise nonsense(self._where, str(error)) from error

    def take(self, count: int) -> memoryview:
        if count > len(self._data):
            raise nonsense(self._where, "it ends in the middle of an item")
        data, self._data = self._data[:count], self._data[count:]
        return data

    def __bool__(self) -> bool:
        return len(self._data) > 0

    def all(self, read: Callable[[Cursor], _Item]) -> list[_Item]:
        """Everything that is left, item by item."""
        items = []
        while self:
            items.append(read(self))
        return items
