# SPDX-License-Identifier: Apache-2.0
"""Runs `program.py` under `pyinstrument-gpu run`, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.gpu.build import ROOT
from pyinstrument_gpu.core.run import Run

PROGRAM = Path(__file__).with_name("program.py")


def record(folder: Path, *arguments: str, warmup: int = 0) -> Run:
    """Its run with these arguments, without the first steps; the run file is written into the
    folder.

    Raises:
        RuntimeError: it fails; with what it printed.
    """
    path = folder / "program.gpurun"
    launch = ["-m", "pyinstrument_gpu", "run", "-o", str(path), "--overwrite"]
    launch += ["--warmup", str(warmup), str(PROGRAM)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, *launch, *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{PROGRAM.name} {' '.join(arguments)} ended with exit code {done.returncode}:\n"
            f"{done.stdout}{done.stderr}"
        )
    return Run.load(path)
