# SPDX-License-Identifier: Apache-2.0
"""Runs two sides in turn until it is known whether the second is slower, or the runs are spent, and
says meanwhile how long that may still take."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random, SystemRandom
from typing import TextIO

import numpy as np

from pyinstrument_gpu.analysis.compare import (
    CONFIDENCE,
    DEFAULT_MARGIN_PERCENT,
    MIN_RUNS,
    Comparison,
    Slowdown,
    compare,
    slowdown,
)
from pyinstrument_gpu.analysis.differences import CODE, COMMAND_LINE
from pyinstrument_gpu.analysis.inference import Look, looks, t_quantile
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import GateError
from pyinstrument_gpu.gate.machine import gpu_users
from pyinstrument_gpu.gate.sides import Side
from pyinstrument_gpu.report.comparison import values_text

SIDES = ("baseline", "candidate")
DEFAULT_RUNS = 5
DEFAULT_MAX_RUNS = 3
"""Times the runs of the first look."""
_ORDERS_DRAWN = 20
_LONGEST_PERIOD = 7
"""Runs after which something repeats that no order of runs may follow."""
_MUST_AGREE = {"host": "another machine", "gpus": "another GPU", "world_size": "other ranks"}


class Progress:
    """A line on a terminal that changes; elsewhere (a log of CI) a line for each run.

    Args:
        in_one_line: whether nothing else writes to a terminal meanwhile.
        clock: seconds.
    """

    def __init__(
        self,
        stream: TextIO,
        in_one_line: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._is_one_line = in_one_line and stream.isatty()
        self._clock = clock
        self._begin_s = clock()
        self._done = 0
        self._width = 0

    def begin(self, side: str, runs: int, max_runs: int) -> None:
        """Show that a run begins, one of so many until it is known or the sides are looked at
        again, and of so many at most."""
        elapsed_s = self._clock() - self._begin_s
        text = f"gate: run {self._done + 1} of {runs} ({side}), {_minutes(elapsed_s)}"
        if self._done:
            text += f", about {_minutes(elapsed_s / self._done * (runs - self._done))} left"
        if max_runs > runs:
            text += f"; up to {max_runs} runs if it stays unclear"
        self.show(text)

    def end(self) -> None:
        self._done += 1

    def close(self) -> None:
        """End the line, so that further output begins on its own."""
        if self._is_one_line and self._width:
            self._stream.write("\r" + " " * self._width + "\r")
            self._stream.flush()
            self._width = 0

    def show_left(self, what: str, left_s: float) -> None:
        """Show what is being done, and how long all of it may still take."""
        self.show(f"try: {what}, about {_minutes(left_s)} left")

    def show(self, text: str) -> None:
        if self._is_one_line:
            self._stream.write("\r" + text.ljust(self._width))
            self._width = len(text)
        else:
            self._stream.write(text + "\n")
        self._stream.flush()


def _minutes(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@dataclass(frozen=True)
class Plan:
    """A gate's number of runs, and its definition of slower.

    Attributes:
        runs: of each side, until the first look.
        max_runs: of each side, at most; None for three times as many.
        limit_percent: by how much the candidate may be slower.
        margin_percent: change up to which times are called the same.
        price_per_hour: of all that a run uses.
        confidence: with which the intervals of all looks hold together.
        in_pairs: whether only the differences of neighbouring runs count, one of each side: what
            drifts is then no noise, at the cost of half of the degrees of freedom.
        undisturbed: whether what phases take undisturbed is compared instead of the elapsed time.

    Raises:
        ValueError: it can't be done.
    """

    runs: int = DEFAULT_RUNS
    max_runs: int | None = None
    limit_percent: float = 0.0
    margin_percent: float = DEFAULT_MARGIN_PERCENT
    price_per_hour: float | None = None
    confidence: float = CONFIDENCE
    in_pairs: bool = False
    undisturbed: bool = False

    def __post_init__(self) -> None:
        if self.runs < MIN_RUNS // 2:
            raise ValueError(
                f"a gate needs at least {MIN_RUNS // 2} runs of each side, got {self.runs}"
            )
        if self.most_runs < self.runs:
            raise ValueError(
                f"the most runs of each side must be at least the {self.runs} of the first look, "
                f"got {self.max_runs}"
            )
        for percent in (self.limit_percent, self.margin_percent):
            if not 0 <= percent < math.inf:
                raise ValueError(f"a percentage must be a number from 0 on, got {percent}")

    @property
    def most_runs(self) -> int:
        return DEFAULT_MAX_RUNS * self.runs if self.max_runs is None else self.max_runs

    @property
    def looks(self) -> tuple[Look, ...]:
        return looks(self.runs, self.most_runs, self.confidence)


@dataclass(frozen=True)
class GateResult:
    """The result of a gate.

    Attributes:
        slowdown: SLOWER, NOT SLOWER or UNCLEAR.
        comparison: of all runs.
        plan, looks_taken: what was to be done, and how many of its looks were needed.
        sides: what was run, as text: the baseline first.
        order: which side ran when: 0 for the baseline, 1 for the candidate.
        warnings: sentences on why the times may mean less than they seem to.
    """

    slowdown: Slowdown
    comparison: Comparison
    plan: Plan
    looks_taken: int
    sides: tuple[str, str]
    order: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def is_slower(self) -> bool:
        return self.slowdown is Slowdown.SLOWER

    @property
    def time(self) -> str:
        """The name of the time that was compared."""
        return "undisturbed" if self.plan.undisturbed else "elapsed"


@dataclass
class Gate:
    """A comparison of two sides, from the first run to the result.

    Attributes:
        random: decides on the order of the runs.
        known: warnings that are known before any run.
        runs: what was recorded so far, by side; of each time the runs of all ranks.
        order: the sides in the order in which they ran.

    Raises:
        MissingDependencyError: scipy is not installed.
    """

    sides: Sequence[Side]
    plan: Plan
    folder: Path
    progress: Progress | None = None
    random: Random = field(default_factory=SystemRandom)
    known: Sequence[str] = ()
    runs: tuple[list[Sequence[Run]], list[Sequence[Run]]] = field(
        default_factory=lambda: ([], []), init=False
    )
    order: list[int] = field(default_factory=list, init=False)
    _uses_gpu: bool = field(default=False, init=False)
    _gpu_users_known: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        t_quantile(CONFIDENCE, 1)  # a missing package is reported before anything is made

    def result(self) -> GateResult:
        """Run it.

        Raises:
            GateError: a side failed, or the sides can't be compared.
        """
        taken = 0
        for look in self.plan.looks:
            taken += 1
            pairs = look.runs - len(self.runs[0])
            for side in next_runs(self.order, pairs, self.random):
                self._record(side, look.runs)
            comparison = compare(
                *self.runs,
                margin_percent=self.plan.margin_percent,
                confidence=look.confidence,
                price_per_hour=self.plan.price_per_hour,
                in_pairs=self.plan.in_pairs,
                undisturbed=self.plan.undisturbed,
            )
            found = slowdown(comparison, self.plan.limit_percent / 100)
            if found is not Slowdown.UNCLEAR:
                break
        return GateResult(
            found,
            comparison,
            self.plan,
            taken,
            self._texts(),
            tuple(self.order),
            tuple(self._warnings(comparison)),
        )

    def _record(self, side: int, runs_of_look: int) -> None:
        if self.progress is not None:
            self.progress.begin(SIDES[side], 2 * runs_of_look, 2 * self.plan.most_runs)
        # Of the first run, it shows only afterwards whether it uses a GPU.
        users = gpu_users() if self._uses_gpu or not self.order else None
        name = f"{SIDES[side]}-{len(self.runs[side]) + 1:02}"
        recorded = self.sides[side].record(name, self.folder)
        ranks = [recorded] if isinstance(recorded, Run) else recorded
        run = ranks[0]
        self.runs[side].append(ranks)
        self.order.append(side)
        self._check(ranks, name)
        if run.environment.get("gpus"):
            self._uses_gpu = True
            self._check_gpu_users(users)
        if self.progress is not None:
            self.progress.end()

    def _check(self, ranks: Sequence[Run], name: str) -> None:
        """Raise GateError where a run can't be compared with the first one."""
        firsts, run = self.runs[self.order[0]][0], ranks[0]
        first = firsts[0]
        first_name = f"{SIDES[self.order[0]]}-01"
        if not (run.steps.closed["complete"]).any():
            raise GateError(
                f"{name} had no step, so there is nothing to compare. Steps that can't be found "
                "are named by gpu_steps or gpu_step; a function that is one step needs `steps`"
            )
        for key, what in _MUST_AGREE.items():
            values = [str(of.environment.get(key, "unknown")) for of in (first, run)]
            if values[0] != values[1]:
                raise GateError(
                    f"{name} ran on {what} than {first_name}: {values[1]}, not {values[0]}. "
                    "The gate compares code, so everything else has to be the same"
                )
        if len(firsts) != len(ranks):
            raise GateError(
                f"{name} has the runs of {len(ranks)} ranks and {first_name} those of "
                f"{len(firsts)}: without those of the same ranks they can't be compared"
            )
        counts = [of.steps_ended for of in (first, run)]
        if counts[0] != counts[1]:
            raise GateError(
                f"{name} has {counts[1]} steps and {first_name} {counts[0]}. Times per step of "
                "trainings of different length can't be compared: give both the same number"
            )

    def _check_gpu_users(self, users: dict[int, str] | None) -> None:
        """Raise GateError if another process computed on a GPU that the runs use.

        Args:
            users: those before a run, when none of our runs was there.
        """
        if users is None:
            self._gpu_users_known = False
            return
        others = [f"{name} ({pid})" for pid, name in users.items() if pid != os.getpid()]
        if others:
            raise GateError(
                f"other processes use the GPU: {', '.join(others)}. Their work would count as a "
                "change. Wait for their end, or set CUDA_VISIBLE_DEVICES to the GPUs that the "
                "training uses"
            )

    def _texts(self) -> tuple[str, str]:
        revisions = [runs[0][0].environment.get("revision") for runs in self.runs]
        first, second = (
            side.text
            if revision is None or revisions[0] == revisions[1]
            else f"{side.text}, revision {revision}"
            for side, revision in zip(self.sides, revisions, strict=True)
        )
        return first, second

    def _warnings(self, comparison: Comparison) -> list[str]:
        # That the code is another is what the gate is for.
        warnings = [
            f"{one.what} differs: {values_text(one)}"
            for one in comparison.differences.found
            if one.what not in (*CODE, COMMAND_LINE)
        ]
        warnings += [*comparison.warnings, *self.known]
        if self._uses_gpu and not self._gpu_users_known:
            warnings.append(
                "it is not known whether others used the GPU: nvidia-smi could not be asked"
            )
        return warnings


def next_runs(order: Sequence[int], pairs: int, random: Random) -> list[int]:
    """The sides (0, 1) of so many more pairs of runs, behind those in `order`.

    They are drawn in blocks of two and four runs, which hold both sides equally often in any order:
    the randomized interleaved trials of Abedi and Brecht (Conducting repeatable experiments in
    highly variable cloud computing environments, ICPE 2017), in blocks whose length varies. A block
    of one length only would lock to whatever repeats with that length. Several orders are drawn,
    and the one is taken in which a drift and a repetition coincide least with a side: the
    rerandomization of Morgan and Rubin (Annals of Statistics 40, 2012).
    """
    drawn = [[*order, *_blocks(pairs, random)] for _ in range(_ORDERS_DRAWN)]
    return min(drawn, key=_explained)[len(order) :]


def _blocks(pairs: int, random: Random) -> Iterator[int]:
    while pairs:
        length = min(random.randint(1, 2), pairs)
        yield from random.sample([*range(2)] * length, 2 * length)
        pairs -= length


def _explained(order: Sequence[int]) -> float:
    """The largest share of the sides' variance that something else explains: a linear drift, or
    what repeats every few runs, at least twice."""
    sides, places = 2.0 * np.array(order) - 1, np.arange(len(order))
    shares = [float(np.corrcoef(places, sides)[0, 1]) ** 2]
    for period in range(2, min(_LONGEST_PERIOD, len(order) // 2) + 1):
        phases = places % period
        means = np.bincount(phases, sides) / np.bincount(phases)
        shares.append(float(np.mean(means[phases] ** 2)))
    return max(shares)
