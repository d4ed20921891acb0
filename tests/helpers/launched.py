# SPDX-License-Identifier: Apache-2.0
"""Programs in a folder of their own, run by `python` and by `pyinstrument-gpu run`."""

import os
import re
import subprocess
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pyinstrument_gpu
from pyinstrument_gpu.core.run import Run
from tests.helpers.python_server import PythonServer, run_fresh_python, run_python

ROOT = Path(pyinstrument_gpu.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

# Programs that do not import torch are forks of a process that has imported what our report needs,
# and nothing of this package.
_LIGHT = PythonServer("click", "numpy", "rich.console", "rich.padding", "rich.table")


def plain(
    folder: Path, *arguments: str, imported: str = "nothing", **options: Any
) -> subprocess.CompletedProcess[str]:
    # To start Python itself is quick, and then what it does is sure to be what Python does.
    has_torch = imported == "torch"
    return python(folder, *arguments, imported="torch" if has_torch else "nothing", **options)


def launched(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python(
        folder,
        *("-m", "pyinstrument_gpu", "run", "-o", "run.gpurun", "--overwrite"),
        *arguments,
        **options,
    )


def python(
    folder: Path,
    *arguments: str,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    imported: Literal["nothing", "libraries", "torch"] = "libraries",
) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in a folder.

    Args:
        environment: variables beside those of ENVIRONMENT.
        imported: what its process has imported: nothing, for a program that could tell; the
            libraries of our report; or torch.
    """
    run = {"nothing": run_fresh_python, "libraries": _LIGHT.run, "torch": run_python}[imported]
    return run(
        *arguments, folder=folder, environment={**ENVIRONMENT, **(environment or {})}, stdin=stdin
    )


def errors_of(done: subprocess.CompletedProcess[str]) -> str:
    """What the program itself wrote: the report comes behind it, after an empty line."""
    begins = r"^\n(?=[^\n]*\d steps? in |pyinstrument-gpu: no steps: )"
    return re.split(begins, done.stderr, maxsplit=1, flags=re.M)[0]


def check_same(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs it both ways, compares, and returns the plain one."""
    without = plain(folder, *arguments, **options)
    with_us = launched(folder, *arguments, **options)
    assert with_us.stdout == without.stdout
    assert errors_of(with_us) == without.stderr
    assert with_us.returncode == without.returncode
    assert Run.load(folder / "run.gpurun").complete
    return without


def write(folder: Path, name: str, source: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(source))
