# SPDX-License-Identifier: Apache-2.0
"""Names of phases where only so many names are welcome."""

from __future__ import annotations

from collections.abc import Sequence

from pyinstrument_gpu.model.surrogates import without_surrogates

OTHER = "other"
"""Stands for all paths beyond the first so many."""


def labels_of(paths: Sequence[str], most: int) -> list[str]:
    """A label for each path, of which at most `most` differ beside `OTHER`.

    The first paths of a run keep their own, so a path never changes its label.
    """
    own = [without_surrogates(path) for path in paths[:most]]
    return own + [OTHER] * (len(paths) - len(own))
