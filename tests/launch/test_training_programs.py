# SPDX-License-Identifier: Apache-2.0
"""Training programs in the style of public ones: under `run` they stay what they are, and what is
recorded of them is what a reader of the program counts.

What is true of a program stands in its comments: the steps, how often phases happen in them, and
the lines that would wait if the tensors were on a GPU. Counts that are not found yet are left out.
"""

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.run import Run
from tests.helpers.launched import errors_of, launched, plain
from tests.helpers.programs import Done, Programs

FOLDER = Path(__file__).parents[1] / "programs"
WAYS: dict[str, list[str]] = {"run": [], "preview": ["--as-if-cuda"]}
SLOW = ("compiled",)
ELSEWHERE = ("common", "ddp", "endings")
PROGRAMS = [
    pytest.param(name, marks=pytest.mark.slow) if name in SLOW or name.startswith("with_") else name
    for name in sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
    if name not in ELSEWHERE
]


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    programs = Programs()
    yield programs
    programs.close()


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Outcome(NamedTuple):
    done: Done
    files: dict[str, bytes]


def run_in(folder: Path, programs: Programs, name: str, ending: str, *options: str) -> Outcome:
    folder.mkdir()
    done = programs.run(
        FOLDER / f"{name}.py",
        options=options or None,
        environment={"ENDING": ending},
        working_directory=folder,
    )
    return Outcome(done, files_in(folder))


def recorded(
    programs: Programs, name: str, folder: Path, *ways: str, ending: str = ""
) -> dict[str, tuple[Done, Run]]:
    """Runs a program without us and under us in some ways, compares, and returns how it ended under
    us, and the runs."""
    plain = run_in(folder / "plain", programs, name, ending)
    found = {}
    for way in ways:
        file = folder / f"{way}.gpurun"
        options = ["-o", str(file), *WAYS[way]]
        done, files = run_in(folder / way, programs, name, ending, *options)
        assert without_times(done.output) == without_times(plain.done.output)
        assert done.exit_code == plain.done.exit_code
        assert done.errors.startswith(plain.done.errors)
        assert files == plain.files
        found[way] = done, Run.load(file)
    return found


def without_times(output: str) -> list[str]:
    # HF's trainer prints how long it took.
    return [line for line in output.splitlines() if "_runtime" not in line]


def truth_of(name: str, what: str) -> str | None:
    found = re.search(f"^# {what}: (.*)$", (FOLDER / f"{name}.py").read_text(), re.M)
    return found and found[1]


def check_counts(name: str, run: Run) -> None:
    steps, phases = truth_of(name, "steps"), truth_of(name, "phases")
    if steps is not None:
        assert run.step_totals.count == int(steps)
    found = Counter[str]()
    for path, phase in run.phases_in(Scope.STEP).items():
        found[path.rpartition("/")[2]] += phase.count
    for item in phases.split(", ") if phases else ():
        phase_name, _, count = item.rpartition(" ")
        assert (phase_name, found[phase_name]) == (phase_name, int(count))


def check_waits(name: str, run: Run) -> None:
    file = FOLDER / f"{name}.py"
    lines = file.read_text().splitlines()
    waiting = {i for i, line in enumerate(lines, 1) if line.endswith("  # waits")}
    assert waiting <= {site.line for site in run.syncs.sites if Path(site.file).name == file.name}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_stays_what_it_is_and_is_counted_right(
    programs: Programs, name: str, tmp_path: Path
) -> None:
    library = name.removeprefix("with_")
    if library != name and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    found = recorded(programs, name, tmp_path, *WAYS)
    for done, run in found.values():
        assert "state " in done.output
        assert "\nRun file: " in done.errors
        assert run.complete
        check_counts(name, run)
    check_waits(name, found["preview"][1])


@pytest.mark.parametrize("ending", ["code", "message", "exception", "interrupt"])
def test_program_ends_in_the_middle_of_a_step(
    programs: Programs, ending: str, tmp_path: Path
) -> None:
    done, run = recorded(programs, "endings", tmp_path, "run", ending=ending)["run"]
    assert "\nstate " in done.output
    assert "Run file: " in done.errors
    check_counts("endings", run)
    assert [step.complete for step in run.steps] == [True, True, True, False]


@pytest.mark.parametrize("ending", ["killed", "at once"])
def test_program_ends_without_pythons_knowledge(
    programs: Programs, ending: str, tmp_path: Path
) -> None:
    done, run = recorded(programs, "endings", tmp_path, "run", ending=ending)["run"]
    assert done.output.count("\n") == 4
    assert not run.complete


def test_program_that_trains_in_its_children_is_told_so(programs: Programs, tmp_path: Path) -> None:
    done, _ = recorded(programs, "hogwild", tmp_path, "run")["run"]
    said = re.findall("^pyinstrument-gpu: no steps: (.*)$", done.errors, re.M)
    assert len(said) == 1
    assert said[0].startswith(
        "this process imported torch, but nothing of a training loop was seen"
    )
    assert "its child processes, which are not recorded, used " in said[0]


@pytest.mark.slow
def test_training_that_is_started_by_its_modules_name(tmp_path: Path) -> None:
    module = ("-m", "tests.programs.trainer")
    without = plain(tmp_path, *module)
    for options in WAYS.values():
        with_us = launched(tmp_path, *options, *module)
        assert (with_us.returncode, with_us.stdout) == (without.returncode, without.stdout)
        assert errors_of(with_us) == without.stderr
        check_counts("trainer", Run.load(tmp_path / "run.gpurun"))
    run = Run.load(tmp_path / "run.gpurun")
    check_waits("trainer", run)
    assert not [site for site in run.syncs.sites if "pyinstrument_gpu/" in site.file]
