# SPDX-License-Identifier: Apache-2.0
"""Runs simulated programs, and says what a change saves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyinstrument_gpu.core.run import Run
from tests.helpers.simulator.draws import Draws
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.rank import Rank


@dataclass(frozen=True)
class Simulated:
    """A program that was run.

    Attributes:
        elapsed_ns: from its first begin until host and device of the recorded rank are done.
    """

    program: Program
    elapsed_ns: int
    ranks: tuple[Rank, ...]
    draws: Draws

    @property
    def run(self) -> Run:
        """What its first rank recorded."""
        return self.ranks[0].recorder.run(self.elapsed_ns)

    def saved_ns(self, edit: Edit) -> tuple[float, ...]:
        """What a change really saves per step: on all ranks, and, where there are more than one, on
        the recorded one alone."""
        everywhere = (True, False) if self.program.ranks > 1 else (True,)
        changed = (self.program.without(edit, on_all_ranks=each) for each in everywhere)
        return tuple(
            (self.elapsed_ns - self.again(each).elapsed_ns) / self.program.steps for each in changed
        )

    def again(self, changed: Program) -> Simulated:
        """The program once more, with changes: with the same times, and the same steps timed."""
        return _simulated(
            changed,
            self.draws,
            [
                Rank(changed, rank.number, self.draws, rank.recorder.timed_steps)
                for rank in self.ranks
            ],
        )


def simulated(program: Program) -> Simulated:
    """Runs a program."""
    draws = Draws(program.seed)
    return _simulated(program, draws, [Rank(program, n, draws) for n in range(program.ranks)])


def _simulated(program: Program, draws: Draws, ranks: Sequence[Rank]) -> Simulated:
    running = [rank.run() for rank in ranks]
    replies: list[int | None] = [None] * len(ranks)
    while True:
        # All ranks come to the same collectives, or to their ends.
        arrivals: list[tuple[int, int]] = []
        for number, rank in enumerate(running):
            reply = replies[number]
            try:
                arrivals.append(next(rank) if reply is None else rank.send(reply))
            except StopIteration:
                continue
        if not arrivals:
            break
        if len(arrivals) != len(ranks):
            raise ValueError(f"{len(arrivals)} of {len(ranks)} ranks came to a collective")
        done_ns = max(arrived_ns for arrived_ns, _ in arrivals) + max(ns for _, ns in arrivals)
        replies = [done_ns] * len(ranks)
    return Simulated(program, ranks[0].done_ns, tuple(ranks), draws)
