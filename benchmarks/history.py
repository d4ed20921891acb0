# SPDX-License-Identifier: Apache-2.0
"""How often a history is wrong, and how often it finds a change, of simulated series of runs.

`python -m benchmarks.history [--histories 300] [--seed 1] [quiet|changed|reverted|looking ...]`

Runs have a spread of 1 % and a tail: one in fifty takes up to tens of percent longer. Hosts differ
by 10 %, and runs are on any of them. All is simulated; no program runs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.history.change_points import change_points, visible_shift
from pyinstrument_gpu.history.history import ERROR


@dataclass(frozen=True)
class Case:
    """What series are made of.

    Attributes:
        correlation: of runs that follow one another on a host.
        correlated: how many series have it.
        hosts: on how many hosts they are.
        shift: of two series, from run `at` on, and if there is an `until`, up to that.
    """

    runs: int
    series: int = 12
    correlation: float = 0.0
    correlated: int = 12
    hosts: int = 1
    shift: float = 0.0
    at: int = 0
    until: int | None = None

    def made(self, random: np.random.Generator) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """The values of a history, as logarithms, and the host of each run."""
        hosts = random.integers(0, self.hosts, self.runs)
        values = random.standard_normal((self.runs, self.series))
        last: dict[int, int] = {}
        fresh, some = np.sqrt(1 - self.correlation**2), slice(self.correlated)
        for run, host in enumerate(hosts.tolist()):
            if host in last:
                values[run, some] *= fresh
                values[run, some] += self.correlation * values[last[host], some]
            last[host] = run
        values *= 0.01
        wild = random.random(values.shape) < 0.02
        values += wild * random.exponential(0.1, values.shape) + 0.1 * hosts[:, None]
        if self.shift:
            values[self.at : self.until, :2] += self.shift
        return values, hosts


QUIET = (
    Case(40),
    Case(150),
    Case(150, hosts=5),
    Case(40, correlation=0.3),
    Case(150, correlation=0.5, hosts=3),
    Case(40, correlation=0.5, correlated=1),
    Case(150, correlation=0.6, correlated=1),
)
CHANGED = tuple(
    Case(runs, hosts=hosts, shift=shift, at=runs - after)
    for runs, after, hosts in ((40, 7, 1), (40, 14, 3), (150, 14, 5))
    for shift in (0.03, 0.04)
)

REVERTED = (
    *(Case(60, series=5, shift=0.08, at=at, until=at + n) for at, n in ((20, 20), (10, 40))),
    *(Case(60, series=5, shift=0.08, at=at, until=at + 10) for at in (10, 25, 40)),
    Case(60, shift=0.08, at=30, until=40, hosts=2),
    Case(150, shift=0.08, at=70, until=80, hosts=3),
    Case(400, shift=0.08, at=203, until=213),
    Case(60, series=5, shift=0.04, at=20, until=40),
)


def quiet(histories: int, random: np.random.Generator) -> None:
    for case in QUIET:
        for error in (ERROR, 0.05):
            made = (case.made(random) for _ in range(histories))
            alarms = sum(bool(change_points(*one, error)) for one in made)
            print(f"error {error:.0%}, {case}: {alarms} false alarms", flush=True)


def changed(histories: int, random: np.random.Generator) -> None:
    for case in CHANGED:
        found = intervals = held = more = 0
        for _ in range(histories):
            values, hosts = case.made(random)
            points = change_points(values, hosts, ERROR)
            near = [one for one in points if abs(one.place - case.at) <= 2]
            found += bool(near)
            more += len(points) > len(near)
            for change in (one for point in near for one in point.series):
                if change.interval is not None and change.series < 2:
                    intervals += 1
                    held += change.interval[0] <= case.shift <= change.interval[1]
        print(
            f"{case}: {found} found within two runs, {more} with another; "
            f"{held} of {intervals} intervals hold the shift",
            flush=True,
        )


def reverted(histories: int, random: np.random.Generator) -> None:
    for case in REVERTED:
        both = more = 0
        for _ in range(histories):
            places = [one.place for one in change_points(*case.made(random), ERROR)]
            near = [[abs(one - at) <= 2 for at in (case.at, case.until or 0)] for one in places]
            both += all(map(any, zip(*near, strict=True))) and bool(near)
            more += not all(map(any, near))
        print(f"{case}: both found within two runs in {both}, {more} with another", flush=True)


def looking(histories: int, random: np.random.Generator) -> None:
    ever, looked = 0, max(1, histories // 10)
    for _ in range(looked):
        values, hosts = Case(100, hosts=2).made(random)
        ever += any(change_points(values[:n], hosts[:n], ERROR) for n in range(20, 101))
    print(f"looked at after each of runs 20 to 100: {ever} of {looked} had ever a false alarm")
    seen = 0
    for _ in range(histories):
        values, hosts = Case(60, hosts=2).made(random)
        shift = visible_shift(values[:, 0], hosts, 14, values.shape[1], ERROR)
        values[46:, 0] += shift or 0.0
        seen += bool(change_points(values, hosts, ERROR))
    print(f"{seen} of {histories} shifts that would probably be found are found")


PARTS = {one.__name__: one for one in (quiet, changed, reverted, looking)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=[*PARTS], help=", ".join(PARTS))
    parser.add_argument("--histories", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    random = np.random.default_rng(given.seed)
    begin_s = time.process_time()
    print(f"of {given.histories} histories each")
    for part in given.parts:
        PARTS[part](given.histories, random)
    print(f"CPU time: {time.process_time() - begin_s:.0f} s")


if __name__ == "__main__":
    main()
