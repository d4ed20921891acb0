# SPDX-License-Identifier: Apache-2.0
"""Callbacks in programs that are launched: under `run`, and as ranks that Lightning starts."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from pyinstrument_gpu.core.run import Run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("pytorch_lightning") is None, reason="Lightning is not installed"
    ),
]

PROGRAM = """
import sys

import pytorch_lightning

from pyinstrument_gpu.integrations.lightning import GpuPhaseCallback
from tests.integrations.lightning_fits import Classifier, loaders

if __name__ == "__main__":
    recorder = GpuPhaseCallback(sys.argv[1])
    pytorch_lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        callbacks=[recorder],
        **({"devices": 2, "strategy": sys.argv[2]} if len(sys.argv) > 2 else {}),
    ).fit(Classifier(), loaders()[0])
    if recorder.recording is not None:
        print("steps:", recorder.run.step_totals.count, file=sys.stderr)
"""
ROOT = Path(__file__).parents[2]


def launch(folder: Path, *command: str, environment: dict[str, str] | None = None) -> str:
    """Runs a command; returns what it said on standard error."""
    (folder / "program.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_callback_under_run_makes_one_recording_and_one_warning(tmp_path: Path) -> None:
    command = ("-m", "pyinstrument_gpu", "run", "-o", "run.gpurun", "program.py", "own.gpurun")
    said = launch(tmp_path, *command)
    assert said.count("starts no recording") == 1
    assert [path.name for path in tmp_path.glob("*.gpurun")] == ["run.gpurun"]
    run = Run.load(tmp_path / "run.gpurun")
    assert [(step.items, step.samples) for step in run.steps] == [(1, 8.0)] * 6


@pytest.mark.parametrize("strategy", ["ddp", "ddp_fork"])
def test_each_rank_that_lightning_starts_has_its_file(strategy: str, tmp_path: Path) -> None:
    said = launch(tmp_path, "program.py", "train.gpurun", strategy)
    assert said.count("3 steps in ") == 1
    for rank in range(2):
        run = Run.load(tmp_path / f"train.rank{rank}.gpurun")
        assert (run.environment["rank"], run.environment["world_size"]) == (rank, 2)
        assert [(step.items, step.samples) for step in run.steps] == [(1, 8.0)] * 3


def test_callback_that_is_turned_off_has_an_empty_run(tmp_path: Path) -> None:
    said = launch(tmp_path, "program.py", "train.gpurun", environment={"PYINSTRUMENT_GPU": "0"})
    assert "steps: 0" in said
    assert not list(tmp_path.glob("*.gpurun"))
