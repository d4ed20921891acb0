# SPDX-License-Identifier: Apache-2.0
"""What a value of a JSON document has to be: questions that are put together from a few."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, TypeAlias

Fits: TypeAlias = Callable[[Any], bool]

COUNT_LIMIT = 1 << 63


def truth(value: Any) -> bool:
    return isinstance(value, bool)


def string(most: float = math.inf) -> Fits:
    return lambda value: isinstance(value, str) and len(value) <= most


def text(most: int) -> Fits:
    """What can be shown as it stands: no control characters, no lone surrogates."""
    return lambda value: isinstance(value, str) and len(value) <= most and value.isprintable()


def matches(pattern: str) -> Fits:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def integer(least: int, limit: int) -> Fits:
    """One from `least` on and below `limit`."""
    return lambda value: type(value) is int and least <= value < limit


count = integer(0, COUNT_LIMIT)


def or_null(fits: Fits) -> Fits:
    return lambda value: value is None or fits(value)


def list_of(fits: Fits, most: float = math.inf) -> Fits:
    return lambda value: isinstance(value, list) and len(value) <= most and all(map(fits, value))


def row(*fits: Fits) -> Fits:
    """A list of so many values, each of its own kind."""

    def is_row(value: Any) -> bool:
        if not isinstance(value, list) or len(value) != len(fits):
            return False
        return all(one(item) for one, item in zip(fits, value, strict=True))

    return is_row


def fields(**fits: Fits) -> Fits:
    """An object with these fields, of which those that may be null may be missing."""

    def has_fields(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        return all(one(value.get(name)) for name, one in fits.items())

    return has_fields
