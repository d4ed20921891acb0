# SPDX-License-Identifier: Apache-2.0
"""Documents that are JSON objects.

What one may say is declared by the class that it is decoded to: the types of its fields, their
ranges, and what may be missing. Fields of a newer version, which the class does not have, are
ignored. A document that does not fit is refused as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from pyinstrument_gpu.core.file.blocks import nonsense

_Document = TypeVar("_Document")

Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class PathName(str):
    """A path of phases. A document has it by its number among the paths of the run."""


LOST_PATH = PathName()
"""The path of a number that the file has not, or no longer."""


def decode_object(
    data: bytes, where: str, kind: type[_Document], paths: Sequence[str] = ()
) -> _Document:
    """The document `where`, an object of this kind.

    Args:
        paths: of the run, for what the document has as a `PathName`.

    Raises:
        RunFileDamagedError: it does not fit.
    """

    def named(kind: type, number: Any) -> PathName:
        number = msgspec.convert(number, Count)
        return PathName(paths[number]) if number < len(paths) else LOST_PATH

    try:
        # Not msgspec.json, which refuses the lone surrogates that stand for bytes of the system.
        return msgspec.convert(json.loads(data.decode()), kind, dec_hook=named)
    except (ValueError, RecursionError) as error:
        raise nonsense(where, str(error)) from error
