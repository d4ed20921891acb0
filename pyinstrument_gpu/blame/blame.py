# SPDX-License-Identifier: Apache-2.0
"""The search for the commit that made training slower, in three stages:

1. A gate of the first and the last commit: without a difference there is nothing to blame.
2. A search for the place of the change (`search.py`), which gives probabilities and proves nothing.
3. A gate of the two commits beside that place, of new runs alone. Only if it says SLOWER is the
   commit named, with its interval.

So the error is that of the third stage, whatever the search supposes and however often it is
wrong: two commits that take equally long are called different in at most 2.5 % of the cases. If
the first confirmation fails, the search goes on with what it has learned, and a second one gets
half of the error that is left, and so on (Bonferroni). As the runs of the confirmation played no
part in choosing the commit, the interval is not biased by the choice either.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import NoReturn, Protocol

from pyinstrument_gpu.analysis.compare import (
    CONFIDENCE,
    DEFAULT_MARGIN_PERCENT,
    MIN_RUNS,
    Slowdown,
)
from pyinstrument_gpu.analysis.inference import t_quantile
from pyinstrument_gpu.analysis.run_sample import Observation, ranks_of, run_samples
from pyinstrument_gpu.blame.commits import Commit
from pyinstrument_gpu.blame.journal import Confirmation, Journal, Measured
from pyinstrument_gpu.blame.search import BLOCK, Places, places
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate.gate import DEFAULT_RUNS, SIDES, Gate, GateResult, Plan, Progress
from pyinstrument_gpu.gate.sides import recorded_runs

DEFAULT_MAX_RUNS = 200
_FEWEST_OF_A_SIDE = MIN_RUNS // 2
_ENDS_SHARE = 8
"""The first stage may use a quarter of the runs, so each side an eighth."""
FEWEST_RUNS = _FEWEST_OF_A_SIDE * _ENDS_SHARE
_SURE = 0.95
"""The probability from which on a place is put to the test. What more certainty costs, the test
gives as well, and with proof."""
_MOST_TESTS = 4
_POWER = 0.9
_RUNS_OF_A_BLOCK = 200


class Runnable(Protocol):
    """A commit that is ready to be run, such as a `CommandSide`."""

    def begun(
        self, name: str, folder: Path
    ) -> contextlib.AbstractContextManager[Callable[[], Observation]]: ...


class _CantRunError(GateError):
    """A commit between the first and the last can't be run, so it is passed over."""


@dataclass(frozen=True)
class BlameResult:
    """The result of a blame.

    Attributes:
        ends: the comparison of the first commit and the last one.
        suspects: one of these commits made training slower, the only one as a rule; several where
            those between can't be run; none if that could not be shown.
        confirmation: the comparison of the commit before the suspects and the last of them.
        likely: if there are no suspects: those that are probably to blame, which was not shown.
        runs: how many were made.
        skipped: commits that can't be run, and why.
    """

    ends: GateResult
    suspects: tuple[Commit, ...]
    confirmation: GateResult | None
    likely: tuple[Commit, ...]
    runs: int
    skipped: Mapping[Commit, str]


@dataclass
class Blame:
    """A search, from the first run to the result.

    Attributes:
        commits: from the good one to the bad one.
        side_of: makes a commit ready to be run; raises GateError if that fails.
        folder: where runs and the journal are kept.
        max_runs: of all commits together.
        margin_percent: a change up to which times are called the same.
        at_once: whether runs that are compared are made at the same time, so that other programs
            disturb all of them, and what their phases take undisturbed is compared.
        random: decides on the order of the runs.

    Raises:
        ValueError: there are too few runs or commits.
    """

    commits: Sequence[Commit]
    side_of: Callable[[Commit], Runnable]
    folder: Path
    journal: Journal
    max_runs: int = DEFAULT_MAX_RUNS
    margin_percent: float = DEFAULT_MARGIN_PERCENT
    progress: Progress | None = None
    at_once: bool = False
    random: Random = field(default_factory=SystemRandom)
    _sides: dict[str, Runnable] = field(default_factory=dict, init=False)
    _runs_before: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        if self.max_runs < FEWEST_RUNS:
            raise ValueError(f"a blame needs at least {FEWEST_RUNS} runs, got {self.max_runs}")
        if len(self.commits) < 2:
            raise ValueError("a blame needs a good commit and a bad one")
        self._runs_before = len(self.journal.runs)

    def result(self) -> BlameResult:
        """Run it.

        Raises:
            GateError: the first or the last commit can't be run, or they can't be compared.
        """
        each = max(self.max_runs // _ENDS_SHARE, _FEWEST_OF_A_SIDE)
        ends = self._gate("ends", self.commits[0], self.commits[-1], self._plan(each, CONFIDENCE))
        if ends.slowdown is not Slowdown.SLOWER:
            return self._result(ends)
        while (test := self._next_test()) is not None:
            place = [commit.sha for commit in self.commits].index
            before, after = place(test.before), place(test.after)
            name = f"confirmation-{self.journal.confirmations.index(test) + 1}"
            plan = self._plan(test.max_runs, test.confidence)
            found = None
            with contextlib.suppress(_CantRunError):
                found = self._gate(name, self.commits[before], self.commits[after], plan)
            if found is not None and found.is_slower:
                return self._result(ends, self.commits[before + 1 : after + 1], found)
            test.is_over = True
            self.journal.save(self.folder)
        return self._result(ends)

    def _plan(self, max_runs: int, confidence: float) -> Plan:
        """Return the plan of a gate with at most so many runs per side, which looks early."""
        return Plan(
            min(max_runs, max(_FEWEST_OF_A_SIDE, min(DEFAULT_RUNS, max_runs), max_runs // 4)),
            max_runs,
            margin_percent=self.margin_percent,
            confidence=confidence,
            in_pairs=True,
            undisturbed=self.at_once,
        )

    def _gate(self, stage: str, before: Commit, after: Commit, plan: Plan) -> GateResult:
        folder = self.folder / stage
        folder.mkdir(parents=True, exist_ok=True)
        sides = [_CommitSide(self, (before, after), number) for number in range(2)]
        return Gate(sides, plan, folder, random=self.random).result()

    def _result(
        self,
        ends: GateResult,
        suspects: Sequence[Commit] = (),
        confirmation: GateResult | None = None,
    ) -> BlameResult:
        likely: tuple[Commit, ...] = ()
        if ends.is_slower and not suspects:
            found = self._places()
            chosen = found.likely(_SURE)
            likely = tuple(
                commit
                for place in sorted(chosen)
                for commit in self.commits[
                    found.runnable[place] + 1 : found.runnable[place + 1] + 1
                ]
            )
        return BlameResult(
            ends,
            tuple(suspects),
            confirmation,
            likely,
            len(self.journal.runs),
            {commit: self.journal.skipped[commit.sha] for commit in self._skipped()},
        )

    def _skipped(self) -> Iterator[Commit]:
        return (commit for commit in self.commits if commit.sha in self.journal.skipped)

    def _next_test(self) -> Confirmation | None:
        """Search until a place is likely enough, and plan its test; one that was begun before this
        process first. None where the runs or the tests are used up."""
        tests = self.journal.confirmations
        if tests and not tests[-1].is_over:
            return tests[-1]
        while (found := self._places()).chances.max() < _SURE:
            # Of thousands of runs, a few more change little, and to weigh all of them takes time.
            for _ in range(1 + len(self.journal.runs) // _RUNS_OF_A_BLOCK):
                if len(self.journal.runs) + BLOCK > self.max_runs:
                    return None
                if not self._run_block(found):
                    break
        confidence = 1 - (1 - CONFIDENCE) / 2 ** (len(tests) + 1)
        # The last of the looks has at least half of the error, on two sides. The last term is for
        # few runs (Guenther, Sample size formulas for normal theory t tests, 1981).
        quantile = t_quantile(1 - (1 - confidence) / 4, math.inf)
        reach = (quantile + t_quantile(_POWER, math.inf)) * found.noise[found.best]
        needed = 2 * (reach / found.effects[found.best]) ** 2 + quantile**2 / 2
        left = (self.max_runs - len(self.journal.runs)) // 2
        most = min(math.ceil(needed), left)
        if most < _FEWEST_OF_A_SIDE or len(tests) == _MOST_TESTS:
            return None
        shas = [self.commits[found.runnable[found.best + later]].sha for later in (0, 1)]
        tests.append(Confirmation(shas[0], shas[1], most, confidence))
        self.journal.save(self.folder)
        return tests[-1]

    def _places(self) -> Places:
        """Return where the change may be, by all runs so far."""
        runnable = [i for i, one in enumerate(self.commits) if one.sha not in self.journal.skipped]
        number = {self.commits[index].sha: place for place, index in enumerate(runnable)}
        runs = [run for run in self.journal.runs.values() if run.commit in number]
        times_ns = [run.step_ns for run in runs]
        blocks = [run.block for run in runs]
        return places([number[run.commit] for run in runs], times_ns, runnable, blocks)

    def _run_block(self, found: Places) -> bool:
        """Run a block of commits; return whether all of them could be run."""
        commits = [self.commits[found.runnable[i]] for i in found.next_commits(self.random)]
        if self.at_once:  # two runs in one checkout might write the same files
            commits = [*dict.fromkeys(commits)]
        folder = self.folder / "search"
        folder.mkdir(parents=True, exist_ok=True)
        first = len(self.journal.runs) + len(self.journal.skipped) + 1
        names = {f"{i:04}-{commit.short}": commit for i, commit in enumerate(commits, first)}
        try:
            self.run(names, folder)
        except _CantRunError:  # later blocks do without it
            return False
        finally:
            for file in itertools.chain.from_iterable(folder.glob(f"{name}.*") for name in names):
                file.unlink()  # it was measured
        return True

    def run(self, names: Mapping[str, Commit], folder: Path) -> dict[str, Observation]:
        """Make runs of commits, but for those that were made before.

        Raises:
            GateError: one is of the first or the last commit, which can't be run.
            _CantRunError: one is of another, which is passed over from now on.
        """
        runs = [
            (n, one) for n, one in names.items() if f"{folder.name}/{n}" not in self.journal.runs
        ]
        for _, commit in runs:  # builds take time, in which a machine drifts
            self._ready(commit)
        made: dict[str, Observation] = {}
        if self.at_once and runs:
            self._run_together(dict(self.random.sample(runs, len(runs))), folder, made)
        else:
            for name, commit in runs:
                self._run_together({name: commit}, folder, made)
        return made

    def _run_together(
        self, names: Mapping[str, Commit], folder: Path, made: dict[str, Observation]
    ) -> None:
        count = len(self.journal.runs)
        # The machine may be another one since an interruption.
        block = count if self.at_once else count - (count - self._runs_before) % BLOCK
        if self.progress is not None:
            commits = ", ".join(commit.text for commit in names.values())
            number = f"run {count + len(names)} of at most {self.max_runs}"
            self.progress.show(f"blame: {number}, {commits}")
        failed: list[tuple[Commit, GateError]] = []
        with contextlib.ExitStack() as leave:
            begun: dict[str, Callable[[], Observation]] = {}
            for name, commit in names.items():
                try:
                    begun[name] = leave.enter_context(self._ready(commit).begun(name, folder))
                except GateError as error:
                    failed.append((commit, error))
            for name, recorded in begun.items():
                try:
                    made[name] = recorded()
                    measured = self._measured(names[name], block, made[name])
                except GateError as error:
                    failed.append((names[name], error))
                    continue
                self.journal.runs[f"{folder.name}/{name}"] = measured
        self.journal.save(self.folder)
        for commit, why in failed:
            self._skip(commit, why)

    def _measured(self, commit: Commit, block: int, made: Observation) -> Measured:
        ranks = ranks_of(made)
        if self.at_once and ranks[0].environment.get("gpus"):
            raise GateError("it uses a GPU, on which runs at once would wait for each other")
        try:
            sample = run_samples([made], self.at_once)[0]
        except ValueError as error:
            raise GateError(str(error)) from error
        measured = Measured(commit.sha, block, ranks[0].steps_ended, sample.elapsed_ns)
        expected = next(iter(self.journal.runs.values()), measured).steps
        if measured.steps != expected:
            raise GateError(f"it has {measured.steps} steps, and others have {expected}")
        return measured

    def _ready(self, commit: Commit) -> Runnable:
        if commit.sha not in self._sides:
            try:
                self._sides[commit.sha] = self.side_of(commit)
            except GateError as error:
                self._skip(commit, error)
        return self._sides[commit.sha]

    def _skip(self, commit: Commit, error: GateError) -> NoReturn:
        if commit in (self.commits[0], self.commits[-1]):
            raise GateError(f"{commit.text} can't be run: {error}") from error
        self.journal.skipped[commit.sha] = str(error)
        self.journal.save(self.folder)
        raise _CantRunError(f"{commit.text} can't be run: {error}") from error


@dataclass(frozen=True)
class _CommitSide:
    """A commit as a side of a gate, and the one on the other side."""

    blame: Blame
    pair: tuple[Commit, Commit]
    number: int

    @property
    def text(self) -> str:
        return self.pair[self.number].text

    def record(self, name: str, folder: Path) -> Observation:
        run = name.rpartition("-")[2]
        names = {f"{side}-{run}": one for side, one in zip(SIDES, self.pair, strict=True)}
        made = self.blame.run(names if self.blame.at_once else {name: names[name]}, folder)
        return made[name] if name in made else recorded_runs(name, folder)
