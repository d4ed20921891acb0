# SPDX-License-Identifier: Apache-2.0
"""Sides of a gate that train with several ranks."""

import sys
from pathlib import Path
from random import Random

import pytest

from pyinstrument_gpu.analysis.compare import Slowdown
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate.gate import Gate, Plan
from pyinstrument_gpu.gate.sides import CommandSide
from tests.analysis.test_compare_jobs import job
from tests.helpers.run_writer import save

pytest.importorskip("scipy", reason="scipy is not installed")

LAUNCHER = """
import pathlib, shutil, sys

out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
for made in pathlib.Path(sys.argv[1]).iterdir():
    shutil.copy(made, out.with_name(out.stem + "." + made.name))
"""


class Jobs:
    """A side that trains with so many ranks, and takes so long for a step."""

    text = "made up"

    def __init__(self, step_ms: int, ranks: list[int], numbers: list[int]) -> None:
        self._step_ms, self._ranks, self._numbers = step_ms, ranks, numbers

    def record(self, name: str, folder: Path) -> list[Run]:
        self._numbers.append(len(self._numbers))
        return job(self._numbers[-1], self._step_ms)[: self._ranks.pop(0)]


def test_a_job_is_one_run_of_its_side() -> None:
    numbers: list[int] = []
    sides = Jobs(20, [3] * 9, numbers), Jobs(30, [3] * 9, numbers)
    result = Gate(sides, Plan(runs=3), Path(), random=Random(0)).result()
    assert result.slowdown is Slowdown.SLOWER
    assert len(result.comparison.elapsed.before_ns) == len(numbers) / 2


def test_a_rank_that_wrote_no_run_is_told() -> None:
    numbers: list[int] = []
    sides = Jobs(20, [3, 2, 3], numbers), Jobs(20, [3] * 3, numbers)
    with pytest.raises(GateError, match=r"has the runs of 2 ranks and .*-01 those of 3"):
        Gate(sides, Plan(runs=3), Path(), random=Random(0)).result()


def test_the_runs_of_all_ranks_of_a_launcher_are_read(tmp_path: Path) -> None:
    made, folder = tmp_path / "made", tmp_path / "runs"
    made.mkdir()
    folder.mkdir()
    for rank, run in enumerate(job(0, 20, ranks=12)):
        save(run, made / f"rank{rank}.gpurun")
    launcher = tmp_path / "launcher.py"
    launcher.write_text(LAUNCHER)
    command = [sys.executable, str(launcher), str(made), "-m", "pyinstrument_gpu", "run", "x.py"]
    runs = CommandSide(command).record("baseline-01", folder)
    assert [run.environment["rank"] for run in runs] == list(range(12))


@pytest.mark.parametrize(
    ("value", "why"), [("Off", "turns recording off"), ("on", "it wrote no run file")]
)
def test_a_command_that_is_not_recorded(value: str, why: str, tmp_path: Path) -> None:
    launcher = tmp_path / "launcher.py"
    launcher.write_text("")
    words = [f"PYINSTRUMENT_GPU={value}", sys.executable, str(launcher)]
    with pytest.raises(GateError, match=f"was not recorded, .*{why}"):
        CommandSide([*words, "-m", "pyinstrument_gpu", "run", "x.py"]).record("a", tmp_path)
