# SPDX-License-Identifier: Apache-2.0
"""What to say where torch could not be hooked."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Sequence


def not_seen(what: str, functions: Sequence[str]) -> str:
    """A sentence about functions that are not built as the hooks expect."""
    return (
        f"this version of torch is not built as expected: {what} of {', '.join(functions)} are "
        "not seen"
    )


def warn_of(problems: Iterable[str]) -> None:
    """A RuntimeWarning for each, also where warnings are errors: none of ours ends a program."""
    for problem in problems:
        with contextlib.suppress(RuntimeWarning):
            warnings.warn(problem, RuntimeWarning, stacklevel=4)
