# SPDX-License-Identifier: Apache-2.0
"""Real training programs, which know nothing of us: same output and exit code, and what is recorded
of them is bounded as asked. More of them: tests/launch/test_training_programs.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from tests.helpers.programs import Programs
from tests.helpers.python_server import ROOT, run_python

PROGRAMS = Path(__file__).parents[1] / "programs"


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


def recorded(
    programs: Programs,
    loop: str,
    tmp_path: Path,
    *options: str,
) -> Run:
    """Runs the loop without us and under us, compares, and returns the run."""
    file = tmp_path / "run.gpurun"
    without = programs.run(PROGRAMS / f"{loop}.py")
    with_us = programs.run(PROGRAMS / f"{loop}.py", options=["-o", str(file), *options])
    assert with_us.exit_code == without.exit_code
    assert with_us.output == without.output
    assert without.output
    assert with_us.errors.startswith(without.errors)
    assert f"Run file: {file}" in with_us.errors
    run = Run.load(file)
    assert run.complete and not run.open_phases
    assert run.environment["torch"]
    return run


def counts(run: Run, scope: Scope = Scope.STEP) -> dict[str, int]:
    return {path: phase.count for path, phase in run.phases_in(scope).items()}


PLAIN = ["data", "zero_grad", "forward", "loss", "backward", "clip", "optimizer"]


def test_steps_and_warmup_bound_what_is_recorded(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "plain", tmp_path, "--warmup", "2", "--steps", "3")
    assert run.step_totals.count == 3
    assert counts(run) == dict.fromkeys(PLAIN, 3)
    assert counts(run, Scope.OUTSIDE) == {}


def test_warmup_longer_than_the_program(programs: Programs, tmp_path: Path) -> None:
    file = tmp_path / "run.gpurun"
    done = programs.run(PROGRAMS / "plain.py", options=["-o", str(file), "--warmup", "99"])
    assert "nothing was recorded: the program ended within the 99 warm-up steps" in done.errors
    assert not file.exists()


@pytest.mark.thorough
def test_torch_that_the_program_imports(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pyinstrument_gpu", "run", "-o", str(tmp_path / "run.gpurun")]
    done = subprocess.run(
        [*command, str(PROGRAMS / "failing.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    plain = run_python(PROGRAMS / "failing.py", environment=environment)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert done.stderr.startswith(plain.stderr)
    assert Run.load(tmp_path / "run.gpurun").step_totals.count == 4
