# SPDX-License-Identifier: Apache-2.0
"""Pickles of plain objects: no class is looked up, and nothing is called.

A file of its own, as the import of the package does not load pickle.
"""

from __future__ import annotations

import io
import pickle
from typing import Any, NoReturn


def loads(data: bytes) -> Any:
    """The object of a pickle; raises whatever unpickling does where it is not plain."""
    return _Unpickler(io.BytesIO(data)).load()


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")
