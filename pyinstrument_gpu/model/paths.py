# SPDX-License-Identifier: Apache-2.0
"""The texts of phase paths."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def join_paths(
    names: Sequence[str], parents: NDArray[np.int64], last_names: NDArray[np.uint32]
) -> tuple[str, ...]:
    """The texts of paths, as `Run.paths` describes them; arguments as the attributes of `Run`."""
    escaped = [name.replace("%", "%25").replace("/", "%2F") for name in names]
    paths: list[str] = []
    for parent, name in zip(parents.tolist(), last_names.tolist(), strict=True):
        paths.append(escaped[name] if parent < 0 else f"{paths[parent]}/{escaped[name]}")
    return tuple(paths)
