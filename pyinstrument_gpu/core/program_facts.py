# SPDX-License-Identifier: Apache-2.0
"""Names in the environment of a run, and of interpreters."""

from __future__ import annotations

import os
import re

KEY = "program_facts"
"""Where the environment of a run holds its `ProgramFacts`."""

CHILDREN = "children_cpu_s"
"""In the environment of a run of `pyinstrument-gpu run`: CPU time of the processes that it started,
and that ended."""

MASK = "***"
"""Stands for a secret in what is recorded of a command line or the environment."""

_PYTHON = re.compile(r"python[\d.]*t?(\.exe)?$")


def is_python(word: str) -> bool:
    """Return whether a word of a command line is the name of an interpreter."""
    return _PYTHON.search(os.path.basename(word)) is not None
