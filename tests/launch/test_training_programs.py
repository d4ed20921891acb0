# SPDX-License-Identifier: Apache-2.0
"""Training programs in the style of public ones: under `run` they stay what they are, and what is
recorded of them is what a reader of the program counts.

What is true of a program stands in its comments (tests/helpers/program_truth.py). At its end each
prints a checksum of its random numbers and its parameters.
"""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.aspects.startup.aspect import startup_times
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.document import document_of
from tests.helpers.program_truth import Truth, found_in, shared_waits
from tests.helpers.programs import Done, Programs
from tests.helpers.training_programs import (
    ENDINGS,
    LIBRARIES,
    PACKAGED,
    RUN_RANKS,
    SCRIPTS,
    SUDDEN_ENDINGS,
    WAYS,
    Ranks,
    needs_libraries,
    run_in,
    run_ranks,
    run_torchrun,
    truth,
)


@pytest.fixture(scope="module")
def programs() -> Programs:
    return Programs()


@pytest.fixture(scope="module")
def library_programs() -> Programs:
    return Programs(*LIBRARIES)


def recorded(
    programs: Programs, name: str, folder: Path, ending: str = "", ways: Iterable[str] = WAYS
) -> dict[str, tuple[Done, Run]]:
    """Runs a program without us and in our ways, compares, and returns how it ended under us, and
    the runs."""
    plain = run_in(folder / "plain", programs, name, ending=ending)
    found = {}
    for way in ways:
        options = WAYS[way]
        file = folder / f"{way}.gpurun"
        outcome = run_in(folder / way, programs, name, "-o", str(file), *options, ending=ending)
        outcome.check_same(plain)
        found[way] = outcome.done, Run.load(file)
    return found


def check_counts(true: Truth, run: Run) -> None:
    found = found_in(run)
    assert found.steps == true.steps
    assert found.phases in (
        true.phases,
        dict(Counter(true.phases) - Counter(true.unseen_phases)),
    )
    assert run.program_facts.loader_workers == true.loader_workers


def check_waits(true: Truth, run: Run) -> None:
    if sys.version_info < (3, 11):
        return  # what moves to a device is not seen
    found = found_in(run).waits
    assert true.waits.keys() - true.unseen <= found.keys()
    assert found.keys() <= true.waits.keys() | true.misnamed | shared_waits()
    for line, libraries in true.waits.items():
        for file in libraries if line in found else ():
            assert any(named.endswith(file) for named in found[line]), (line, found[line])


def check(name: str, found: dict[str, tuple[Done, Run]]) -> None:
    true = truth(name)
    for done, run in found.values():
        assert "state " in done.output
        assert "Run file: " in done.errors
        assert run.complete
        check_counts(true, run)
    assert not found["run"][1].syncs.sites  # a CPU waits for nothing
    if "preview" in found:
        check_waits(true, found["preview"][1])
    check_startup(found["run"][1])


def check_startup(run: Run) -> None:
    """All of it is divided. (These processes are forks, which have imported torch before.)"""
    times = startup_times(run)
    if times is not None:  # there is a step
        assert sum(part.time_ns for part in times.parts) + times.not_covered_ns == times.total_ns
        assert "run" in {part.part for part in times.parts}
        assert not times.not_seen


# In `make test`. Other shapes of a loop are there in tests/auto/test_known_loops.py.
ALWAYS = ("checkpoints", "generator", "plain", "workers")


def samples(names: Iterable[str], always: Sequence[str]) -> list[Any]:
    return [
        pytest.param(name, marks=() if name in always else pytest.mark.thorough) for name in names
    ]


@pytest.mark.parametrize(
    "name", samples((name for name in SCRIPTS if not needs_libraries(name)), ALWAYS)
)
def test_program_stays_what_it_is_and_is_counted_right(
    programs: Programs, name: str, tmp_path: Path
) -> None:
    check(name, recorded(programs, name, tmp_path))


@pytest.mark.thorough
@pytest.mark.parametrize("name", [*filter(needs_libraries, SCRIPTS), PACKAGED])
def test_program_of_a_library_stays_what_it_is_and_is_counted_right(
    library_programs: Programs, name: str, tmp_path: Path
) -> None:
    check(name, recorded(library_programs, name, tmp_path))


@pytest.mark.parametrize("ending", samples(ENDINGS, ["exception", "interrupt", "child"]))
def test_program_ends_in_the_middle_of_a_step(
    programs: Programs, ending: str, tmp_path: Path
) -> None:
    # To end is the same in each way.
    ways = WAYS if ending == "exception" else ["run"]
    found = recorded(programs, "endings", tmp_path, ending, ways)
    check("endings", found)
    for _, run in found.values():
        assert [step.complete for step in run.steps] == [True, True, True, False]


@pytest.mark.parametrize("ending", samples(SUDDEN_ENDINGS, ["killed"]))
def test_program_ends_without_pythons_knowledge(
    programs: Programs, ending: str, tmp_path: Path
) -> None:
    for done, run in recorded(programs, "endings", tmp_path, ending, ["run"]).values():
        assert done.exit_code != 0
        assert done.output.count("\n") == 4
        assert not run.complete


def test_program_that_trains_in_its_children_is_told_so(programs: Programs, tmp_path: Path) -> None:
    done, run = recorded(programs, "hogwild", tmp_path)["run"]
    verdict = document_of(run).verdict
    assert verdict.startswith(
        "No step ended: this process imported torch, but nothing of a training loop was seen; "
        "its child processes, which are not recorded, used "
    )
    assert verdict.removeprefix("No step ended: ") in " ".join(done.errors.split())


@pytest.mark.parametrize(
    ("run_recorded", "ways"),
    [(run_ranks, WAYS), pytest.param(run_torchrun, ["run"], marks=pytest.mark.thorough)],
    ids=["forks", "torchrun"],
)
def test_ranks_and_their_report(
    tmp_path: Path, run_recorded: Callable[..., Ranks], ways: Iterable[str]
) -> None:
    pytest.importorskip("torch")
    plain = run_ranks(tmp_path / "plain")
    assert plain.output[-1].startswith("state ") and plain.output[-2].startswith("state ")
    for way in ways:
        done = run_recorded(tmp_path / way, *RUN_RANKS, *WAYS[way])
        assert done.exit_code == plain.exit_code == 0, done.errors
        assert done.output == plain.output
        # Times of a preview are not those of the program, and not shown.
        assert len(re.findall("^.s per step +mean", done.errors, re.M)) == (way != "preview")
        assert "Ranks: 2 of 2" in done.errors
        assert "Phases across ranks" in done.errors
        assert re.search(r"Look at it: .* --html .*\.rank\*\.gpurun$", done.errors, re.M)
        parts = [file.name.rpartition(".rank") for file in done.files]
        assert [last for *_, last in parts] == ["0.gpurun", "1.gpurun"]
        assert len({first for first, *_ in parts}) == 1
        runs = [Run.load(file) for file in done.files]
        assert [run.environment["rank"] for run in runs] == [0, 1]
        for run in runs:
            check_counts(truth("ddp"), run)
            assert run.program_facts.ranks == 2
        if way == "preview":
            check_waits(truth("ddp"), runs[0])  # only this rank prints
