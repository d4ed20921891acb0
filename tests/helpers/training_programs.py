# SPDX-License-Identifier: Apache-2.0
"""The programs of `tests/programs`, run without us and under `run`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.helpers import python_server
from tests.helpers.program_truth import FOLDER, Truth, truth_of, truth_of_script
from tests.helpers.programs import Done, Programs
from tests.helpers.python_server import ROOT

ENDINGS = (
    *("code", "message", "exception", "interrupt", "interrupt raised", "exit function"),
    *("thread", "child", "child at once"),
)
SUDDEN_ENDINGS = ("terminated", "killed", "aborted", "at once")
"""Those that Python does not notice."""
RUN_RANKS = ("-m", "pyinstrument_gpu", "run")
WAYS: dict[str, list[str]] = {"run": [], "preview": ["--as-if-cuda"]}
PACKAGED = "tuning.sft"
# `common` is what they share. The others are run in ways of their own.
_ELSEWHERE = ("common", "ddp", "endings")
SCRIPTS = [n for n in sorted(p.stem for p in FOLDER.glob("[a-z]*.py")) if n not in _ELSEWHERE]
# What takes seconds to import: a process imports it once for all the programs that use it.
LIBRARIES = (
    "accelerate",
    "pytorch_lightning",
    "transformers.trainer",
    "transformers.modeling_utils",
)


def needs_libraries(name: str) -> bool:
    return name.startswith("with_") or name == PACKAGED


class Outcome(NamedTuple):
    """How a program ended, and the files that it left in its working directory."""

    done: Done
    files: Mapping[str, bytes]

    def check_same(self, plain: Outcome) -> None:
        """Raises AssertionError where it is not what it was without us."""
        assert without_times(self.done.output) == without_times(plain.done.output)
        assert self.done.exit_code == plain.done.exit_code
        assert self.done.errors.startswith(plain.done.errors)
        assert self.files == plain.files


def run_in(folder: Path, programs: Programs, name: str, *options: str, ending: str = "") -> Outcome:
    """Runs a program in a folder that it makes. Without options, without us."""
    is_module = name == PACKAGED
    if is_module:
        folder = folder / "site-packages"
        shutil.copytree(FOLDER / "installed", folder, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        folder.mkdir()
    done = programs.run(
        name if is_module else FOLDER / f"{name}.py",
        options=options or None,
        is_module=is_module,
        environment={
            "ENDING": ending,
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        working_directory=folder,
    )
    files = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    return Outcome(done, {n: data for n, data in files.items() if "__pycache__" not in n})


class Ranks(NamedTuple):
    """How the two ranks of `ddp` ended."""

    exit_code: int
    output: list[str]  # sorted lines: the ranks print at the same time
    errors: str
    files: list[Path]


def run_ranks(folder: Path, *options: str) -> Ranks:
    """Runs the ranks of `ddp`, as torchrun does, in a folder that it makes. Options are those of
    the interpreter."""
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    arguments = (*options, FOLDER / "ddp.py")
    ranks = python_server.run_ranks(2, *arguments, environment=environment, folder=folder)
    return Ranks(
        max(done.returncode for done in ranks),
        sorted(line for done in ranks for line in done.stdout.splitlines()),
        "".join(done.stderr for done in ranks),
        sorted(folder.iterdir()),
    )


def run_torchrun(folder: Path, *options: str) -> Ranks:
    """The same by torchrun."""
    folder.mkdir()
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *torchrun, *options, str(FOLDER / "ddp.py")],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )
    files = sorted(folder.iterdir())
    return Ranks(done.returncode, sorted(done.stdout.splitlines()), done.stderr, files)


def truth(name: str) -> Truth:
    if name == PACKAGED:
        package = FOLDER / "installed" / "tuning"
        return truth_of(package / "sft.py", package / "trainer.py")
    return truth_of_script(name)


def without_times(output: str) -> list[str]:
    # HF's trainer prints how long it took.
    return [line for line in output.splitlines() if "_runtime" not in line]
