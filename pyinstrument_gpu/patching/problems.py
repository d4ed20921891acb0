# SPDX-License-Identifier: Apache-2.0
"""Reports of the recorder's own problems."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Sequence


def not_seen(what: str, functions: Sequence[str]) -> str:
    """A sentence about functions that are not built as the hooks expect."""
    return (
        f"this version of torch is not built as expected: {what} of {', '.join(functions)} are "
        "not seen"
    )


def warn_of(*problems: str) -> None:
    """Give a RuntimeWarning for each. Where warnings are errors, print a line to standard error
    instead: no warning of this package ends a program, and on our threads none would be caught."""
    for problem in problems:
        try:
            warnings.warn(problem, RuntimeWarning, stacklevel=4)
        except RuntimeWarning:
            print_error(f"pyinstrument_gpu: {problem}")


def print_error(text: str) -> None:
    """Write to standard error, which the program may have closed or replaced: then nothing."""
    with contextlib.suppress(Exception):
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stderr.flush()
