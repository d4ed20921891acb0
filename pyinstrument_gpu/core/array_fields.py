# SPDX-License-Identifier: Apache-2.0
"""Equality of data classes that hold arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class ArrayFields:
    """A data class that equals another one when all of its fields do, arrays included."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(map(np.array_equal, self._values(), other._values()))

    def __hash__(self) -> int:
        return hash(tuple(value for value in self._values() if not isinstance(value, np.ndarray)))

    def _values(self) -> list[Any]:
        return [getattr(self, field.name) for field in fields(self)]
