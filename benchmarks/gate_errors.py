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
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.gpu.figure import Figure, print_and_write
from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.analysis.slowdown import Slowdown
from pyinstrument_gpu.gate.call_side import CallSide
from pyinstrument_gpu.gate.gate import Gate, GateResult, Plan
from pyinstrument_gpu.run import Run

_Z = 1.959964


class Training:
    """A small network on pictures of handwritten digits, on one thread.

    Args:
        steps: of a training.
        slower: the share of its own time by which each step is made longer.
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
        last_ns = time.perf_counter_ns()
        for images, labels in itertools.islice(epochs, self._steps):
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            now_ns = time.perf_counter_ns()
            end_ns = now_ns + self._slower * (now_ns - last_ns)
            while self._slower and now_ns < end_ns:
                now_ns = time.perf_counter_ns()
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
    return statistics.median(compare(recorded, recorded).elapsed.before_ns) / 1e3


def interval(count: int, total: int) -> tuple[float, float]:
    """The 95 % interval of a share, in percent, by Wilson."""
    share = count / total
    middle = share + _Z * _Z / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total))
    scale = 1 + _Z * _Z / total
    return 100 * (middle - spread) / scale, 100 * (middle + spread) / scale


def share(name: str, count: int, total: int, **more: float | str) -> Figure:
    note = f"{count} of {total}"
    if not total:
        return Figure(name, math.nan, "%", note=note)
    return Figure(name, 100 * count / total, "%", *interval(count, total), note=note, **more)  # type: ignore[arg-type]


def measure(
    gates: int,
    minutes: float,
    steps: int,
    planted: Sequence[float],
    plan: Plan,
    log: Path | None,
) -> Iterator[Figure]:
    """All figures. Ends early when the minutes are over."""
    yield Figure("a step", step_us(steps), "us", note="the median of 20 runs")
    until_s = time.monotonic() + 60 * minutes
    found: dict[float, list[GateResult]] = {slower: [] for slower in (0.0, *planted)}
    for slower in itertools.islice(itertools.cycle(planted), gates):
        for extra in (0.0, slower):
            result = one_gate(steps, extra, plan)
            found[extra].append(result)
            if log is not None:
                with log.open("a") as file:
                    file.write(json.dumps(row(extra, result)) + "\n")
        if time.monotonic() > until_s:
            break
    same = found[0.0]
    yield share(
        "the same program, called SLOWER", sum(r.is_slower for r in same), len(same), goal=3.0
    )
    yield from described("the same program", same)
    for slower in planted:
        name, results = f"steps longer by {100 * slower:.3g} %", found[slower]
        yield share(f"{name}, called SLOWER", sum(r.is_slower for r in results), len(results))
        able = [result for result in results if can_show(result, slower)]
        yield share(
            f"{name}, called SLOWER where the gate says that it can show that",
            sum(result.is_slower for result in able),
            len(able),
        )
        yield from described(name, results)
    known = [
        result.other_processors
        for results in found.values()
        for result in results
        if result.other_processors is not None
    ]
    yield Figure("processors that other programs used", sum(known) / max(len(known), 1), "")


def described(name: str, results: Sequence[GateResult]) -> Iterator[Figure]:
    for of in (Slowdown.NOT_SLOWER, Slowdown.UNCLEAR):
        count = sum(result.slowdown is of for result in results)
        yield share(f"{name}, {of.value}", count, len(results))
    runs = sum(len(result.order) for result in results) / max(len(results), 1)
    yield Figure(f"{name}: runs of a gate", runs, "")
    effects = sorted(100 * (r.comparison.elapsed.smallest_effect or math.nan) for r in results)
    if effects:
        yield Figure(f"{name}: smallest effect, median", effects[len(effects) // 2], "%")


def can_show(result: GateResult, effect: float) -> bool:
    smallest = result.comparison.elapsed.smallest_effect
    return smallest is not None and smallest <= effect


def row(slower: float, result: GateResult) -> dict[str, object]:
    elapsed = result.comparison.elapsed
    return {
        "planted": slower,
        "result": result.slowdown.value,
        "change": elapsed.change,
        "interval": elapsed.interval,
        "smallest_effect": elapsed.smallest_effect,
        "runs": len(result.order),
        "other_processors": result.other_processors,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--gates", type=int, default=200, help="of the same program, and as many with a slowdown"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="at most")
    parser.add_argument("--steps", type=int, default=100, help="of each run")
    parser.add_argument("--planted", type=float, nargs="+", default=[0.05, 0.25], metavar="SHARE")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--max-runs", type=int, default=15)
    parser.add_argument("--log", type=Path, metavar="FILE", help="write a line for each gate")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write all figures as JSON")
    options = parser.parse_args()
    found = measure(
        options.gates,
        options.minutes,
        options.steps,
        options.planted,
        Plan(options.runs, options.max_runs),
        options.log,
    )
    print_and_write(found, options.results)


if __name__ == "__main__":
    main()
