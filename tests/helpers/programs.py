# SPDX-License-Identifier: Apache-2.0
"""Programs that use torch, run with and without us, each in a process that finds torch loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from pyinstrument_gpu.aspects.table import ASPECTS
from tests.helpers.python_server import ROOT, TORCH, PythonServer, run_python

# What `pyinstrument-gpu run` imports, which takes longer than these programs do. Whether a program
# notices that is tried with others (tests/launch/test_own_imports.py, test_endings.py).
_OURS = (
    *("pyinstrument_gpu.cli", "pyinstrument_gpu.launch.launch", "pyinstrument_gpu.auto.calls"),
    *("pyinstrument_gpu.core.run", "pyinstrument_gpu.report.overview"),
    *(f"{row.package}.aspect" for row in ASPECTS),
    *(f"{row.package}.{row.watch}" for row in ASPECTS if row.watch),
)


class Done(NamedTuple):
    exit_code: int  # minus the signal's number, as with subprocess
    output: str
    errors: str


@cache
def _server_with(*modules: str) -> PythonServer:
    return PythonServer(*TORCH, *modules)


class Programs:
    """Runs programs.

    Args:
        modules: what else than torch is imported before the programs run, where that takes long.
    """

    def __init__(self, *modules: str) -> None:
        self._plain = _server_with(*modules).run if modules else run_python
        self._recorded = self._plain if modules else _server_with(*_OURS).run

    def run(
        self,
        program: Path | str,
        *,
        options: Sequence[str] | None = None,
        is_module: bool = False,
        environment: Mapping[str, str] | None = None,
        working_directory: Path = ROOT,
    ) -> Done:
        """Run a script.

        Args:
            options: those of `pyinstrument-gpu run`, or None to run it without.
            is_module: whether the program is the name of a module, as after `python -m`.
        """
        recorded = () if options is None else ("-m", "pyinstrument_gpu", "run", *options)
        done = (self._recorded if recorded else self._plain)(
            *recorded,
            *(("-m",) if is_module else ()),
            program,
            environment={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            folder=working_directory,
        )
        return Done(done.returncode, done.stdout, done.stderr)
