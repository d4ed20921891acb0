# SPDX-License-Identifier: Apache-2.0
"""Programs in a folder of their own, run by `python` and by `pyinstrument-gpu run`."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pyinstrument_gpu
from pyinstrument_gpu.run import Run

ROOT = Path(pyinstrument_gpu.__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}


def plain(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python(folder, *arguments, **options)


def launched(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python(
        folder,
        *("-m", "pyinstrument_gpu", "run", "-o", "run.gpurun", "--overwrite"),
        *arguments,
        **options,
    )


def python(
    folder: Path, *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=ENVIRONMENT | (environment or {}),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=600,
    )


def errors_of(done: subprocess.CompletedProcess[str]) -> str:
    """What the program itself wrote: the report comes behind it, after an empty line."""
    return re.split(r"^\n[^\n]*pyinstrument_gpu run", done.stderr, maxsplit=1, flags=re.M)[0]


def check_same(
    folder: Path, *arguments: str, stdin: str = "", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs it both ways, compares, and returns the plain one."""
    without = plain(folder, *arguments, stdin=stdin, environment=environment)
    with_us = launched(folder, *arguments, stdin=stdin, environment=environment)
    assert with_us.stdout == without.stdout
    assert errors_of(with_us) == without.stderr
    assert with_us.returncode == without.returncode
    assert Run.load(folder / "run.gpurun").complete
    return without


def write(folder: Path, name: str, source: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(textwrap.dedent(source))
