# SPDX-License-Identifier: Apache-2.0
"""Runs `program.py` under `pyinstrument-gpu run`, in a process of its own.

    python -m benchmarks.gpu.recorded_program FOLDER

keeps the run and its page, from which the pictures of README.md and docs/page.md can be taken
(`docs/make_page_images.py`).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.build import ROOT
from benchmarks.gpu.figure import Figure, print_figures
from pyinstrument_gpu.core.run import Run

PROGRAM = Path(__file__).with_name("program.py")


def record(
    folder: Path,
    *arguments: str,
    warmup: int = 0,
    options: Sequence[str] = (),
    name: str = "program",
) -> Run:
    """Its run with these arguments, without the first steps; the run file is written into the
    folder. The options are those of `run`.

    Raises:
        RuntimeError: it fails; with what it printed.
    """
    path = folder / f"{name}.gpurun"
    launch = ["-m", "pyinstrument_gpu", "run", "-o", str(path), "--overwrite"]
    launch += ["--warmup", str(warmup), *options, str(PROGRAM)]
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


def figures(folder: Path, *arguments: str) -> Iterator[Figure]:
    """What the run that is kept has. The arguments go to the program."""
    options = ("--html", "--modules", "--flops", "--energy")
    run = record(folder, "gpt", *arguments, warmup=5, options=options, name="gpu-run")
    page = (folder / "gpu-run.html").stat().st_size
    steps = len(run.steps.closed)
    yield Figure("steps of the run that is kept", steps, "", note=f"page: {page:,} bytes")
    timed = int((run.span_device_ns >= 0).sum())
    yield Figure("spans with device times", timed, "", note=f"of {len(run.spans)}")
    yield Figure("modules", len(run.modules), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    print_figures(figures(parser.parse_args().folder))


if __name__ == "__main__":
    main()
