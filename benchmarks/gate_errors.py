# SPDX-License-Identifier: Apache-2.0
"""`gate` on a real program: how often it calls the same program slower, and how often it finds a
step that is longer by 5 %.

Every gate is a live one: its runs are made for it, in turn, in this process. Each run makes a model
and trains it anew; what it takes besides the steps does not count. Gates without and with a planted
slowdown alternate, so that both see the same machine. A slowdown should be found in 80 % of those
gates whose own power statement says that they can show one of that size.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu.figure import Figure, print_and_write
from pyinstrument_gpu.analysis.compare import Slowdown, compare
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate.gate import Gate, GateResult, Plan
from pyinstrument_gpu.gate.sides import CallSide

_Z = 1.959964


class Training:
    """A small network on pictures of handwritten digits, on one thread.

    Args:
        steps: of a training.
        slower: the share of its own CPU time by which each step is made longer. That makes it
            longer by the same share of its time, also where it has to wait for a processor.
    """

    def __init__(self, steps: int, slower: float) -> None:
        torch.set_num_threads(1)
        self._steps = steps
        self._slower = slower
        images, labels = digits()
        self._data = TensorDataset(images, labels)

    def __call__(self) -> None:
        torch.manual_seed(0)
        loader = DataLoader(self._data, batch_size=32, shuffle=True)
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        criterion = nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
        epochs = itertools.chain.from_iterable(itertools.repeat(loader))
        last_ns = time.thread_time_ns()
        for images, labels in itertools.islice(epochs, self._steps):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            now_ns = time.thread_time_ns()
            end_ns = now_ns + self._slower * (now_ns - last_ns)
            while self._slower and now_ns < end_ns:
                now_ns = time.thread_time_ns()
            last_ns = now_ns


@functools.cache
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    found = load_digits()
    return torch.tensor(found.data / 16, dtype=torch.float32), torch.tensor(found.target)


def one_gate(steps: int, slower: float, plan: Plan) -> GateResult:
    sides = CallSide(Training(steps, 0.0)), CallSide(Training(steps, slower))
    with tempfile.TemporaryDirectory() as folder:
        return Gate(sides, plan, Path(folder)).result()


def step_us(steps: int, runs: int = 20) -> float:
    """The median over some runs of the mean elapsed time per step."""
    side = CallSide(Training(steps, 0.0))
    with tempfile.TemporaryDirectory() as folder:
        recorded: list[Run] = [side.record(str(i), Path(folder)) for i in range(runs)]
    halves = compare(recorded[::2], recorded[1::2]).elapsed
    return statistics.median([*halves.before_ns, *halves.after_ns]) / 1e3


def interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, in percent, by Wilson."""
    share = count / total
    middle = share + _Z * _Z / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total))
    scale = 1 + _Z * _Z / total
    low, high = (100 * end / scale for end in (middle - spread, middle + spread))
    return max(low, 0.0), min(high, 100.0)


def share(name: str, count: int, total: int, goal: float | None = None) -> Figure:
    note = f"{count} of {total}"
    if not total:
        return Figure(name, 0, "", note="there were none")
    return Figure(name, 100 * count / total, "%", *interval(count, total), goal, note)


@dataclass(frozen=True)
class Row:
    """A gate, as a line of the log.

    Attributes:
        slower: by what share the steps of the candidate were longer.
    """

    slower: float
    result: str
    change: float
    interval: tuple[float, float]
    smallest_effect: float
    runs: int
    other_processors: float | None

    @classmethod
    def of(cls, slower: float, found: GateResult) -> Row:
        elapsed = found.comparison.elapsed
        assert elapsed.interval is not None and elapsed.smallest_effect is not None
        return cls(
            slower,
            found.slowdown.value,
            elapsed.change,
            elapsed.interval,
            elapsed.smallest_effect,
            len(found.order),
            found.comparison.other_processors,
        )


def read(log: Path) -> list[Row]:
    return [Row(**json.loads(line)) for line in log.read_text().splitlines()]


def measure(
    gates: int, minutes: float, steps: int, planted: Sequence[float], plan: Plan, log: Path
) -> Iterator[Figure]:
    """All figures, of the gates that the log holds and of those that are missing, as many as can be
    made in so many minutes. Two gates of the same program come to one with a slowdown."""
    yield Figure("a step", step_us(steps), "us", note="the median of 20 runs")
    until_s = time.monotonic() + 60 * minutes
    kinds = itertools.cycle([kind for slower in planted for kind in (0.0, 0.0, slower)] or [0.0])
    rows = read(log) if log.exists() else []
    while sum(row.slower == 0 for row in rows) < gates and time.monotonic() < until_s:
        slower = next(kinds)
        rows.append(Row.of(slower, one_gate(steps, slower, plan)))
        with log.open("a") as file:
            file.write(json.dumps(asdict(rows[-1])) + "\n")
    yield from figures(rows)


def figures(rows: Sequence[Row]) -> Iterator[Figure]:
    for slower in sorted({row.slower for row in rows}):
        of = [row for row in rows if row.slower == slower]
        name = f"steps longer by {100 * slower:.3g} %" if slower else "the same program"
        for result in Slowdown:
            count = sum(row.result == result.value for row in of)
            goal = 3.0 if not slower and result is Slowdown.SLOWER else None
            yield share(f"{name}: {result.value}", count, len(of), goal)
        if slower:
            able = [row for row in of if row.smallest_effect <= slower]
            count = sum(row.result == Slowdown.SLOWER.value for row in able)
            yield share(f"{name}, which the gate says that it can show: SLOWER", count, len(able))
        yield Figure(f"{name}: runs of a gate", statistics.mean(row.runs for row in of), "")
        changes = [100 * row.change for row in of]
        yield Figure(f"{name}: change, median", statistics.median(changes), "%")
        effects = [100 * row.smallest_effect for row in of]
        yield Figure(f"{name}: smallest effect, median", statistics.median(effects), "%")
    others = [row.other_processors for row in rows if row.other_processors is not None]
    if others:
        yield Figure("processors that other programs used", statistics.mean(others), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gates", type=int, default=200, help="of the same program")
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--steps", type=int, default=100, help="of each run")
    parser.add_argument("--planted", type=float, nargs="*", default=[0.05, 0.5], metavar="SHARE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-runs", type=int, default=15)
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="write a line for each gate, and go on from there"
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    plan = Plan(options.runs, options.max_runs)
    with tempfile.TemporaryDirectory() as folder:
        log = options.log or Path(folder, "log")
        found = measure(options.gates, options.minutes, options.steps, options.planted, plan, log)
        print_and_write(found, options.results)


if __name__ == "__main__":
    main()
