# SPDX-License-Identifier: Apache-2.0
"""Which commit a blame names, of commits whose runs are made up."""

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.blame import summary
from pyinstrument_gpu.blame.blame import FEWEST_RUNS, Blame, BlameResult
from pyinstrument_gpu.blame.commits import Commit
from pyinstrument_gpu.blame.journal import Confirmation, Journal
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError
from tests.helpers.run_writer import save
from tests.helpers.timed_runs import MS, made_run

COMMITS = [Commit(f"{number:040x}", f"Change {number}") for number in range(9)]


class Killed(BaseException):
    pass


class Runner:
    """Runs of commits on a machine that becomes slower. From the commit `place` on, backward takes
    a tenth more of what a step took before."""

    def __init__(
        self,
        place: int,
        noise: float = 0.01,
        steps: Callable[[int], int] = lambda _: 2,
        **environment: Any,
    ):
        self._environment = environment
        self._place, self._steps, self._noise = place, steps, noise
        self._random = np.random.default_rng(1)
        self.broken: set[int] = set()
        self.made: list[int] = []
        self.at_work: list[int] = []
        self.together: list[tuple[int, ...]] = []
        self.most = 10_000

    def side_of(self, commit: Commit) -> "_Side":
        return _Side(self, COMMITS.index(commit))

    def run(self, number: int) -> Run:
        if len(self.made) == self.most:
            raise Killed
        if number in self.broken:
            raise GateError("it ended with exit code 1\nin a second line")
        self.made.append(number)
        self.together.append(tuple(self.at_work))
        level = 10 * MS * np.exp(0.01 * len(self.made) + self._random.normal(0, self._noise))
        slower = 0.1 * (number >= self._place)
        phases = {"forward": 0.5 / (1 + slower), "backward": (0.4 + slower) / (1 + slower)}
        steps_ns = [level * (1 + slower)] * self._steps(number)
        return made_run(steps_ns, phases, **self._environment)


class _Side:
    def __init__(self, runner: Runner, number: int) -> None:
        self._runner, self._number = runner, number

    @contextlib.contextmanager
    def begun(self, name: str, folder: Path) -> Iterator[Callable[[], Run]]:
        self._runner.at_work.append(self._number)

        def recorded() -> Run:
            run = self._runner.run(self._number)
            save(run, folder / f"{name}.gpurun")
            return run

        yield recorded
        self._runner.at_work.remove(self._number)


def blame(
    runner: Runner, folder: Path, max_runs: int = 150, seed: int = 1, at_once: bool = False
) -> BlameResult:
    blamed = Blame(COMMITS, runner.side_of, folder, Journal.of(folder), max_runs, at_once=at_once)
    blamed.random = Random(seed)
    return blamed.result()


@pytest.mark.parametrize("place", [1, 8])
def test_the_commit_and_its_phase_are_named(place: int, tmp_path: Path) -> None:
    result = blame(Runner(place), tmp_path)
    assert result.suspects == (COMMITS[place],)
    first = summary.text(result).splitlines()[0]
    assert first.startswith(f"{COMMITS[place].text}: backward +2")  # a quarter of 0.4
    assert first.endswith(f"), found in {result.runs} runs")
    assert result.confirmation is not None
    low, high = result.confirmation.comparison.elapsed.interval or (0, 0)
    assert low < 0.1 < high


def test_a_phase_within_the_noise_is_not_replaced_by_a_smaller_one() -> None:
    def runs(forward_ms: list[float], backward_ms: float) -> list[Run]:
        return [
            made_run([(one + backward_ms) * MS] * 20, {"forward": one / (one + backward_ms)})
            for one in forward_ms
        ]

    before = runs([10.0, 10.1, 10.2, 10.0, 10.1, 10.2], 10)
    noisy = compare(before, runs([10, 14, 11, 15, 12, 14], 11), in_pairs=True)
    assert [phase.path for phase in noisy.significant_phases] == ["outside phases"]
    assert summary.slowest_phase(noisy) is None
    clear = compare(before, runs([10.1, 10.2, 10.1, 10.2, 10.1, 10.2], 11), in_pairs=True)
    assert (summary.slowest_phase(clear) or clear.phases[1]).path == "outside phases"


def test_at_once_commits_run_beside_each_other(tmp_path: Path) -> None:
    runner = Runner(5, steps=lambda _: 20)
    result = blame(runner, tmp_path, at_once=True)
    assert result.suspects == (COMMITS[5],)
    assert "undisturbed time per step" in summary.text(result)
    groups = [group for group in runner.together if group]
    assert {len(group) for group in groups} <= {2, 3, 4}
    assert all(len(set(group)) == len(group) for group in groups)  # each in its own checkout


def test_at_once_what_uses_a_gpu_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"can't be run: it uses a GPU"):
        blame(Runner(5, gpus=["H100"]), tmp_path, at_once=True)
    assert blame(Runner(5), tmp_path).suspects == (COMMITS[5],)


def test_without_a_change_no_commit_is_named(tmp_path: Path) -> None:
    result = blame(Runner(len(COMMITS)), tmp_path)
    assert not result.suspects and not result.likely and result.confirmation is None
    assert summary.text(result).startswith(f"No commit is named after {result.runs} runs: ")
    assert result.runs <= 150 / 4


def test_a_change_that_could_not_be_placed_has_suspects_that_are_called_probable(
    tmp_path: Path,
) -> None:
    journal = Journal.of(tmp_path)
    test = Confirmation(COMMITS[0].sha, COMMITS[1].sha, 3, 0.99, is_over=True)
    journal.confirmations.extend([test] * 4)  # all that may be made
    runner = Runner(5)
    random = Random(1)
    result = Blame(COMMITS, runner.side_of, tmp_path, journal, 150, random=random).result()
    assert result.ends.is_slower and not result.suspects
    assert COMMITS[5] in result.likely
    text = summary.text(result)
    assert text.startswith(f"No commit is named: {result.runs} runs don't show which one it is")
    assert "which is not shown: " in text


def test_commits_that_cant_be_run_are_passed_over(tmp_path: Path) -> None:
    runner = Runner(5)
    runner.broken = {2, 4, 5}
    result = blame(runner, tmp_path)
    assert result.suspects == tuple(COMMITS[4:7])
    assert {COMMITS[4], COMMITS[5]} <= set(result.skipped) <= {COMMITS[i] for i in (2, 4, 5)}
    text = summary.text(result)
    assert text.startswith("One of 3 commits, as those between can't be run: ")
    assert f"{COMMITS[4].text} can't be run: it ended with exit code 1\n" in text


def test_a_commit_that_trains_for_another_number_of_steps_is_passed_over(tmp_path: Path) -> None:
    result = blame(Runner(5, steps=lambda number: 3 if number == 4 else 2), tmp_path)
    assert result.skipped == {COMMITS[4]: "it has 3 steps, and others have 2"}
    assert result.suspects == tuple(COMMITS[4:6])


@pytest.mark.parametrize("end", [0, 8])
def test_an_end_that_cant_be_run_is_an_error(end: int, tmp_path: Path) -> None:
    runner = Runner(5)
    runner.broken = {end}
    with pytest.raises(GateError, match=rf"Change {end}\) can't be run: it ended with"):
        blame(runner, tmp_path)


@pytest.mark.parametrize("killed_after", [1, 7, 14])
def test_a_blame_that_was_killed_goes_on(killed_after: int, tmp_path: Path) -> None:
    runner = Runner(5, noise=0.03)
    runner.most = killed_after
    with pytest.raises(Killed):
        blame(runner, tmp_path)
    made = Journal.of(tmp_path).runs
    assert len(made) == killed_after
    sides = {"baseline": "candidate", "candidate": "baseline"}
    other = {name: re.sub("|".join(sides), lambda side: sides[side[0]], name) for name in made}
    kept = [name for name in made if other[name] in made]  # that of the search is its own
    runner.most = 10_000
    result = blame(runner, tmp_path, seed=2)
    assert result.suspects == (COMMITS[5],)
    # None was made twice, but those whose pair was cut in two.
    assert len(runner.made) == result.runs + len(made) - len(kept)
    runs = Journal.of(tmp_path).runs
    blocks = {runs[name].block for name in kept}
    assert blocks.isdisjoint(run.block for name, run in runs.items() if name not in kept)


def test_a_second_confirmation_has_half_of_the_error(tmp_path: Path) -> None:
    # Two commits share the change: what is between them may be put to the test first.
    journal = Journal.of(tmp_path)
    runner = Runner(5)
    blamed = Blame(COMMITS, runner.side_of, tmp_path, journal, 150, random=Random(1))
    blamed.result()
    first = journal.confirmations[0]
    assert first.confidence == pytest.approx(0.975)
    first.is_over = True
    blamed.result()
    assert [one.confidence for one in journal.confirmations] == pytest.approx([0.975, 0.9875])


def test_a_state_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(GateError, match=r"state.json is not the state of a blame"):
        Journal.of(tmp_path)


def test_same_commits_are_rarely_told_apart(tmp_path: Path) -> None:
    named = 0
    for seed in range(10):
        runner = Runner(len(COMMITS), noise=0.05)
        runner._random = np.random.default_rng(seed)
        (folder := tmp_path / str(seed)).mkdir()
        named += bool(blame(runner, folder, max_runs=FEWEST_RUNS, seed=seed).suspects)
    assert named == 0


@pytest.mark.parametrize(("max_runs", "commits"), [(FEWEST_RUNS - 1, 9), (FEWEST_RUNS, 1)])
def test_what_cant_be_done_is_refused(max_runs: int, commits: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a blame needs"):
        Blame(COMMITS[:commits], Runner(5).side_of, tmp_path, Journal(), max_runs)
