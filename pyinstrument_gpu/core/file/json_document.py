# SPDX-License-Identifier: Apache-2.0
"""Documents that are JSON objects.

What one may say is declared by the class that it is decoded to: the types of its fields, their
ranges, and what may be missing. Fields of a newer version, which the class does not have, are
ignored. A document that does not fit is refused as a whole.
"""

from __future__ import annotations

import json
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from pyinstrument_gpu.core.file.blocks import nonsense

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
