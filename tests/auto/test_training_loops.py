# SPDX-License-Identifier: Apache-2.0
"""Real training programs, which know nothing of us: same output and exit code, right phases and
steps."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from tests.helpers.programs import Programs
from tests.helpers.python_server import ROOT, run_python

PROGRAMS = Path(__file__).parents[1] / "programs"

# Two clocks read one after the other by different code.
CLOCK_SLACK_NS = 1_000_000


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


def recorded(
    programs: Programs,
    loop: str,
    tmp_path: Path,
    *options: str,
    environment: Mapping[str, str] | None = None,
) -> Run:
    """Runs the loop without us and under us, compares, and returns the run."""
    file = tmp_path / "run.gpurun"
    without = programs.run(PROGRAMS / f"{loop}.py")
    with_us = programs.run(
        PROGRAMS / f"{loop}.py", options=["-o", str(file), *options], environment=environment
    )
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


def per_step(run: Run, step: int) -> list[str]:
    """The phases of a step in the order in which they began."""
    spans = run.spans[run.spans["step"] == step]
    return [run.paths[path] for path in spans["path"][np.argsort(spans["host_begin_ns"])]]


PLAIN = ["data", "zero_grad", "forward", "loss", "backward", "clip", "optimizer"]


def test_plain(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "plain", tmp_path)
    assert (run.step_totals.count, run.step_totals.complete) == (12, 12)
    for step in range(12):
        assert per_step(run, step) == PLAIN
    outside = counts(run, Scope.OUTSIDE)
    assert outside == {"data start": 2, "data end": 2, "scheduler": 2, "checkpoint": 2}
    assert (run.step_totals.samples, run.step_totals.items) == (96, 12)


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


def test_accumulation(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "accumulation", tmp_path)
    # Two whole steps per epoch, and a rest.
    assert [step.complete for step in run.steps] == [True, True, False] * 2
    assert [step.items for step in run.steps] == [3, 3, 1] * 2
    assert [step.samples for step in run.steps] == [24, 24, 8] * 2
    assert counts(run)["optimizer"] == 4
    assert counts(run)["forward"] == counts(run)["backward"] == counts(run)["loss"] == 14


def test_amp_step_that_is_left_out_is_short_not_missing(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "amp", tmp_path)
    assert run.step_totals.complete == 6
    assert all(per_step(run, step).count("optimizer") == 1 for step in range(6))
    assert set(counts(run)) == {"data", "zero_grad", "forward", "loss", "backward", "optimizer"}


def test_gan(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "gan", tmp_path)
    assert run.step_totals.complete == 6
    assert counts(run) == {
        "data": 6,
        "zero_grad": 12,
        "no_grad": 6,
        "forward": 6 * 4,
        "loss": 6 * 3,
        "backward": 12,
        "optimizer": 6,
        "optimizer 2": 6,
    }


def test_closure(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "lbfgs", tmp_path)
    assert run.step_totals.complete == 4
    found = counts(run)
    calls = found["optimizer/forward"]
    assert (found["data"], found["optimizer"]) == (4, 4)
    assert calls > 4
    inner = ("forward", "zero_grad", "loss", "backward")
    assert {f"optimizer/{name}": calls for name in inner}.items() <= found.items()
    assert len(found) == 6


def test_update_by_hand(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "word_model", tmp_path)
    assert run.step_totals.complete == run.step_totals.count == 8
    for step in range(8):
        assert per_step(run, step) == ["zero_grad", "forward", "loss", "backward", "clip"]
    assert "! No optimizer was seen" in run.report(verbose=True)
    assert run.spans["host_end_ns"].max() <= run.steps[-1].end_ns


def test_loader_with_workers(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "workers", tmp_path)
    assert run.step_totals.complete == 12
    assert counts(run) == {
        "data": 12,
        "forward": 12,
        "loss": 12,
        "backward": 12,
        "optimizer": 12,
        "zero_grad": 12,
    }
    assert counts(run, Scope.OUTSIDE) == {"data start": 2, "data end": 2}
    assert counts(run, Scope.OTHER_THREADS) == {}


def test_trainer_class(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "trainer", tmp_path)
    assert run.step_totals.complete == 12
    assert set(counts(run)) == {"data", "zero_grad", "forward", "backward", "optimizer"}


def test_validation_stays_apart(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "validation", tmp_path)
    assert run.step_totals.complete == 12
    assert set(counts(run)) == {"data", "forward", "loss", "zero_grad", "backward", "optimizer"}
    assert counts(run)["forward"] == counts(run)["optimizer"] == 12
    assert counts(run)["data"] == 12
    # Two epochs, and six validations of three batches.
    assert counts(run, Scope.OUTSIDE) == {
        "data start": 8,
        "data": 18,
        "data end": 8,
        "eval": 18,
        "loss": 3,
    }


def test_exception_in_the_middle(programs: Programs, tmp_path: Path) -> None:
    run = recorded(programs, "failing", tmp_path)
    assert [step.complete for step in run.steps] == [True, True, True, False]
    assert per_step(run, 3) == ["data", "zero_grad", "forward"]
    assert counts(run)["forward"] == 4


def test_generator_instead_of_a_loader(programs: Programs, tmp_path: Path) -> None:
    environment = {"LOOP_OVER": str(tmp_path / "over")}
    run = recorded(programs, "generator", tmp_path, environment=environment)
    assert run.step_totals.complete == 10
    for step in range(10):
        assert per_step(run, step) == ["zero_grad", "forward", "loss", "backward", "optimizer"]
    assert counts(run, Scope.OUTSIDE) == {"no_grad": 1}
    # The last one ends with its update, not with the program.
    last = run.spans[run.spans["path"] == run.paths.index("optimizer")]["host_end_ns"][-1]
    over_ns = int((tmp_path / "over").read_text()) - run.anchor["monotonic_raw_ns"]
    over_ns += run.anchor["run_ns"]
    assert last <= run.steps[-1].end_ns <= over_ns + CLOCK_SLACK_NS


def run_with_library(library: str, tmp_path: Path) -> Run:
    """Runs the loop that uses a library, both ways, in processes of their own."""
    script = str(PROGRAMS / f"with_{library}.py")
    file = tmp_path / "run.gpurun"
    outputs = []
    for command in ([script], ["-m", "pyinstrument_gpu", "run", "-o", str(file), script]):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        outputs.append([line for line in lines if "runtime" not in line])  # it prints times
    assert outputs[0] == outputs[1]
    return Run.load(file)


@pytest.mark.slow
def test_lightning(tmp_path: Path) -> None:
    run = run_with_library("lightning", tmp_path)
    assert [step.items for step in run.steps] == [2] * 6
    assert (run.step_totals.complete, run.step_totals.samples) == (6, 96)
    found = counts(run)
    assert found["optimizer"] == 6
    # Forward and backward run in the closure of the optimizer's step, where there is one.
    for name in ("forward", "backward", "loss"):
        assert sum(n for path, n in found.items() if path.split("/")[-1] == name) == 12
    assert not any("eval" in path for path in found)
    assert counts(run, Scope.OUTSIDE)["eval"] >= 7


@pytest.mark.slow
def test_transformers(tmp_path: Path) -> None:
    run = run_with_library("transformers", tmp_path)
    assert (run.step_totals.complete, run.step_totals.count) == (6, 6)
    found = counts(run)
    assert (found["optimizer"], found["forward"], found["backward"]) == (6, 12, 12)
    assert "eval" not in found
    assert counts(run, Scope.OUTSIDE)["eval"] == 6


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
