# SPDX-License-Identifier: Apache-2.0
"""Documents read back from JSON."""

import dataclasses
import enum
import types
import typing
from typing import Any, TypeVar

from msgspec import Struct

from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.json_document import PathName

_Document = TypeVar("_Document")


def read_document(of: type[_Document], members: dict[str, Any]) -> _Document:
    """The dataclass or struct of which these are the JSON members: what is not there is None, or
    empty."""
    found = {}
    hints = typing.get_type_hints(of)
    for name in hints:
        if name == "sections":
            found[name] = {
                one.name: _read(one.section_type, members.get(one.name))
                for one in aspects()
                if one.section_type is not None
            }
        else:
            found[name] = _read(hints[name], members.get(name))
    return of(**found)


def _read(hint: Any, value: Any) -> Any:
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        return tuple(_read(item, one) for one in value or ())
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        (inner,) = (one for one in typing.get_args(hint) if one is not type(None))
        return None if value is None else _read(inner, value)
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, Struct)):
        return read_document(hint, value)  # type: ignore[arg-type]
    assert value is not None, f"{hint} is missing"
    if isinstance(hint, type) and issubclass(hint, (enum.Enum, PathName)):
        return hint(value)
    return value
