# SPDX-License-Identifier: Apache-2.0
"""Documents that are JSON objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard, TypeVar

from pyinstrument_gpu.errors import RunFileDamagedError
from pyinstrument_gpu.format.blocks import nonsense

_T = TypeVar("_T")
_INTEGER_LIMIT = 1 << 63


class JsonObject:
    """Typed access to a JSON object, with errors that name the key, and `where` it stands."""

    def __init__(self, document: Any, where: str) -> None:
        if not isinstance(document, dict):
            raise nonsense(where, f"{document!r} should be an object")
        self.document: dict[str, Any] = document
        self._where = where

    @classmethod
    def decode(cls, data: bytes, where: str) -> JsonObject:
        try:
            return cls(json.loads(data.decode()), where)
        except (ValueError, RecursionError) as error:
            raise nonsense(where, str(error)) from error

    def integer(self, key: str, limit: int = _INTEGER_LIMIT) -> int:
        value = self.document.get(key)
        if not is_count(value) or value >= limit:
            raise self._wrong(key, f"a non-negative integer below {limit}")
        return value

    def boolean(self, key: str) -> bool:
        value = self.document.get(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def object(self, key: str) -> dict[str, Any]:
        """Empty where there is none."""
        value = self.document.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "an object")
        return value

    def integers(self, key: str) -> dict[str, int]:
        value = self.object(key)
        if not all(map(is_count, value.values())):
            raise self._wrong(key, "an object of non-negative integers")
        return value

    def list(self, key: str) -> Iterable[Any]:
        value = self.document.get(key, [])
        if not isinstance(value, list):
            raise self._wrong(key, "a list")
        return value

    def optional_number(self, key: str) -> float | None:
        value = self.document.get(key)
        if value is None:
            return None
        if type(value) not in (int, float) or not abs(value) < 1e300:
            raise self._wrong(key, "a number or null")
        return float(value)

    def optional_text(self, key: str) -> str | None:
        value = self.document.get(key)
        if not isinstance(value, (str, type(None))):
            raise self._wrong(key, "a text or null")
        return value

    def optional(self, key: str, read: Callable[[JsonObject], _T]) -> _T | None:
        """What `read` makes of an object; None where it is null."""
        value = self.document.get(key)
        return None if value is None else read(JsonObject(value, f"{self._where} {key}"))

    def _wrong(self, key: str, expected: str) -> RunFileDamagedError:
        return nonsense(self._where, f"{key} = {self.document.get(key)!r} should be {expected}")


def is_count(value: Any) -> TypeGuard[int]:
    """Whether it is an integer of 0 to 2^63 - 1."""
    return type(value) is int and 0 <= value < _INTEGER_LIMIT
