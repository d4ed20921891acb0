# SPDX-License-Identifier: Apache-2.0
"""A document as the values that JSON has."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import msgspec

_DIGITS = 6
_WHOLE_FROM = 1000

_Value = TypeVar("_Value")


def rounded(value: _Value, name: str = "") -> _Value:
    """Round to six digits, and to whole nanoseconds and bytes from 1,000 on, so that all views of a
    document show the same number. A number that is not finite becomes None."""
    found: Any = value
    if value is None or isinstance(value, (str, int)):  # most are, of the many of a large run
        return value
    fields = _fields(value)
    if fields is not None:
        found = type(value)(**{name: rounded(one, name) for name, one in fields.items()})
    elif isinstance(value, dict):
        found = {key: rounded(one, key) for key, one in value.items()}
    elif isinstance(value, tuple):
        found = tuple(rounded(one, name) for one in value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            found = None
        elif name.endswith(("_ns", "_bytes")) and (abs(value) >= _WHOLE_FROM or not value % 1):
            found = round(value)
        else:
            found = float(f"{value:.{_DIGITS}g}")
    result: _Value = found
    return result


def plain(value: Any) -> Any:
    """The value as dicts, lists, texts and numbers, without what is None or has no rows. What is a
    dict gives its members to what it is in."""
    fields = _fields(value)
    if fields is not None:
        members: dict[str, Any] = {}
        for field, one in fields.items():
            given = one if isinstance(one, dict) else {field: one}
            members |= {name: plain(part) for name, part in given.items()}
        return {name: one for name, one in members.items() if one is not None and one != []}
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    return value


def _fields(value: Any) -> dict[str, Any] | None:
    """Return the fields of a data class or a struct; None for anything else."""
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    return None
