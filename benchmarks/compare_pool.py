# SPDX-License-Identifier: Apache-2.0
"""`compare` on runs of a real program: how often two sides of the same program are told apart, and
how often a slower side is found.

The program runs so many times as it is and so many times with steps that are longer by a known
time, in turn, each time in a process of its own under `pyinstrument-gpu run`. Pairs of sides are
then drawn from the pools, without replacement within a pair. Pairs of many draws share their runs,
so they are not independent: intervals are those of a jackknife over the runs of the pool, which
knows of that. And a pool is one program on one machine on one day.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.gpu.figure import Figure, print_and_write
from pyinstrument_gpu.analysis.compare import Verdict, compare
from pyinstrument_gpu.core.run import Run

PROGRAM = Path(__file__).with_name("digits_loop.py")
SIZES = ((3, 3), (5, 5), (3, 8))
_Z = 1.959964


def record_pools(
    folder: Path, runs: int, epochs: int, extra_us: float
) -> tuple[list[Run], list[Run]]:
    """The two pools. What is in the folder already is taken as it is."""
    pools: tuple[list[Run], list[Run]] = ([], [])
    for number in range(runs):
        for name, extra, pool in zip(("plain", "slower"), (0.0, extra_us), pools, strict=True):
            path = folder / f"{name}-{number}.gpurun"
            if not path.exists():
                _record(path, epochs, extra)
            pool.append(Run.load(path))
    return pools


def _record(path: Path, epochs: int, extra_us: float) -> None:
    beside = path.with_suffix(".part")
    launch = ["-m", "pyinstrument_gpu", "run", "-o", str(beside), "--overwrite", str(PROGRAM)]
    options = ["--epochs", str(epochs), "--extra-us", str(extra_us)]
    subprocess.run([sys.executable, *launch, *options], capture_output=True, check=True)
    beside.rename(path)


def rate(
    before: Sequence[Run], after: Sequence[Run], sizes: tuple[int, int], draws: int, seed: int
) -> tuple[dict[Verdict, float], tuple[float, float]]:
    """The shares of the verdicts over many pairs of sides, and the interval of the share of FASTER
    and SLOWER together.

    Args:
        before, after: the pools, or twice the same one: then no run is on both sides of a pair.
    """
    random = np.random.default_rng(seed)
    is_one = before is after
    used = np.zeros((draws, len(before) if is_one else len(before) + len(after)), dtype=bool)
    verdicts = []
    for draw in range(draws):
        if is_one:
            chosen = random.permutation(len(before))[: sum(sizes)]
            sides = chosen[: sizes[0]], chosen[sizes[0] :]
            used[draw, chosen] = True
        else:
            first, second = (
                random.permutation(len(pool))[:size]
                for pool, size in zip((before, after), sizes, strict=True)
            )
            sides = first, second
            used[draw, first] = used[draw, len(before) + second] = True
        found = compare([before[i] for i in sides[0]], [after[i] for i in sides[1]])
        verdicts.append(found.verdict)
    apart = np.array([verdict in (Verdict.FASTER, Verdict.SLOWER) for verdict in verdicts])
    shares = {verdict: verdicts.count(verdict) / draws for verdict in Verdict}
    return shares, jackknife(apart, used)


def jackknife(is_apart: np.ndarray, used: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a share of draws, from what it is over the draws without each run.

    Args:
        is_apart: (draws,) bool.
        used: (draws, runs) bool: which runs a draw holds.
    """
    runs = used.shape[1]
    without = np.array([is_apart[~used[:, run]].mean() for run in range(runs)])
    error = np.sqrt((runs - 1) / runs * ((without - without.mean()) ** 2).sum())
    share = is_apart.mean()
    return max(0.0, share - _Z * error), min(1.0, share + _Z * error)


def figures(folder: Path, runs: int, epochs: int, extra_us: float, draws: int) -> Iterator[Figure]:
    """All that this measures."""
    plain, slower = record_pools(folder, runs, epochs, extra_us)
    for name, pool in (("a step", plain), ("a slower step", slower)):
        totals = [run.step_totals for run in pool]
        means_us = np.array([of.duration.total_ns / of.count / 1e3 for of in totals])
        yield Figure(name, float(means_us.mean()), "us", note=f"{len(pool)} runs")
        yield Figure(
            f"{name}, SD between runs", 100 * float(means_us.std(ddof=1) / means_us.mean()), "%"
        )
    for before, after in SIZES:
        name = f"{before} against {after} runs"
        shares, (low, high) = rate(plain, plain, (before, after), draws, seed=1)
        apart = shares[Verdict.FASTER] + shares[Verdict.SLOWER]
        note = f"SAME {100 * shares[Verdict.SAME]:.1f} %"
        yield Figure(
            f"{name} of one program, called FASTER or SLOWER",
            *(100 * apart, "%", 100 * low, 100 * high),
            goal=5,
            note=note,
        )
        shares, (low, high) = rate(plain, slower, (before, after), draws, seed=2)
        note = (
            f"FASTER {100 * shares[Verdict.FASTER]:.1f} %, SAME {100 * shares[Verdict.SAME]:.1f} %"
        )
        yield Figure(
            f"{name}, slower, called SLOWER",
            *(100 * shares[Verdict.SLOWER], "%", 100 * low, 100 * high),
            note=note,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40, help="in each pool")
    parser.add_argument("--epochs", type=int, default=10, help="of each run")
    parser.add_argument("--extra-us", type=float, default=100.0, help="of a step that is slower")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument(
        "--pool", type=Path, metavar="FOLDER", help="keep the runs, and go on there"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pool = options.pool or Path(folder)
        pool.mkdir(parents=True, exist_ok=True)
        found = figures(pool, options.runs, options.epochs, options.extra_us, options.draws)
        print_and_write(found, options.results)


if __name__ == "__main__":
    main()
