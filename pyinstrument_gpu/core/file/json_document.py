# SPDX-License-Identifier: Apache-2.0
"""Documents that are JSON objects, held against a schema: what fits each of their fields.

Of some documents all has to fit. Of the others, what does not is left out and named.
"""

from __future__ import annotations

import json
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from pyinstrument_gpu.core.file.blocks import nonsense
from pyinstrument_gpu.core.file.fits import Fits

Schema: TypeAlias = Mapping[str, Fits]
_Document = TypeVar("_Document")

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


def decode_object(data: bytes, where: str, kind: type[_Document]) -> _Document:
    """The document `where`, an object of this kind.

    Raises:
        RunFileDamagedError: it does not fit.
    """
    try:
        # Not msgspec.json, which refuses the lone surrogates that stand for bytes of the system.
        return msgspec.convert(json.loads(data.decode()), kind)
    except (ValueError, RecursionError) as error:
        raise nonsense(where, str(error)) from error


@dataclass(frozen=True)
class Object:
    """An object, of which each field is judged on its own. What is none has to be null, if that."""

    schema: Schema
    may_be_null: bool = False

    def __call__(self, value: Any) -> bool:
        return value is None and self.may_be_null


@dataclass(frozen=True)
class Each:
    """A list, of which each item is judged on its own."""

    fits: Fits

    def __call__(self, value: Any) -> bool:
        return False


def json_object(data: bytes, where: str) -> dict[str, Any]:
    """The object that the document `where` is.

    Raises:
        RunFileDamagedError: it is none.
    """
    try:
        document = json.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise nonsense(where, str(error)) from error
    if not isinstance(document, dict):
        raise nonsense(where, f"{reprlib.repr(document)} should be an object")
    return document


def checked(data: bytes, where: str, required: Schema, optional: Schema) -> dict[str, Any]:
    """The fields of a document of which all has to fit.

    Raises:
        RunFileDamagedError: one does not, or is missing though it is required.
    """
    document = json_object(data, where)
    for name, fits in {**required, **optional}.items():
        if (name in document or name in required) and not fits(document.get(name)):
            raise nonsense(where, f"{name} = {reprlib.repr(document.get(name))}")
    return {name: document[name] for name in (*required, *optional) if name in document}


def picked(found: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The fields of these names, None for those that are missing."""
    return {name: found.get(name) for name in names}


def fitting(
    found: Mapping[str, Any], schema: Schema, left_out: list[str], prefix: str = ""
) -> dict[str, Any]:
    """The fields that fit; `left_out` gets the names of the others."""
    facts: dict[str, Any] = {}
    for name, fits in schema.items():
        if name not in found:
            continue
        value = found[name]
        if isinstance(fits, Object) and isinstance(value, dict):
            facts[name] = fitting(value, fits.schema, left_out, f"{prefix}{name}.")
        elif isinstance(fits, Each) and isinstance(value, list):
            facts[name] = list(filter(fits.fits, value))
            left_out += [prefix + name] * (len(value) - len(facts[name]))
        elif fits(value):
            facts[name] = value
        else:
            left_out.append(prefix + name)
    return facts
