# SPDX-License-Identifier: Apache-2.0
"""What marking the phases of a real training step makes of its time.

Blocks of steps take turns: without, without once more, and with each contender, in an order drawn
anew in each round, each behind three of its own kind that do not count: a recording that has just
begun writes what it writes once. The second block without gives the floor: the difference seen
where there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.effort import size
from benchmarks.gpu.figure import Figure
from benchmarks.interleave import interleaved, relative_difference
from benchmarks.lineup import lineup, measured
from benchmarks.peers import PEERS
from benchmarks.race import note_missing
from benchmarks.way import Way, empty

torch = pytest.importorskip("torch")

from benchmarks.models import Training, gpt_block, residual_cnn, small_mlp  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_core")

UNTIMED = "untimed"
UNTIMED_AGAIN = "untimed, once more: the floor"
BLOCK_NS = size(20_000_000, 1_000_000)
WARM_UPS = 3
ROUNDS = 40
SECONDS = 15.0


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def untimed(training: Training, steps: int) -> Callable[[], int]:
    """Measures a block of steps in which nothing is marked: nanoseconds."""
    parts = list(training.parts.values())

    def block() -> None:
        for _ in range(steps):
            for part in parts:
                part()

    return measured(empty(), lambda _: block(), steps, warm_ups=WARM_UPS)


def marked(training: Training, way: Way, steps: int) -> Callable[[], int]:
    """The same with each part in a phase, and the step in what belongs around it."""
    parts, phase = list(training.parts.items()), way.phase
    assert phase is not None

    def block() -> None:
        for _ in range(steps):
            with way.step(training.model):
                for name, part in parts:
                    with phase(name):
                        part()

    return measured(way, lambda _: block(), steps, warm_ups=WARM_UPS)


def step_figures(results: dict[str, NDArray[np.float64]], steps: int) -> list[Figure]:
    """What a step without takes, and by how much it is longer in each other arm."""
    step_ns = float(np.median(results[UNTIMED])) / steps
    figures = [Figure(UNTIMED, step_ns / 1e3, "us", note=f"{len(results[UNTIMED])} rounds")]
    for label, times_ns in results.items():
        if label != UNTIMED:
            share = relative_difference(results[UNTIMED], times_ns)
            percent = (100 * share.value, "% of the step", 100 * share.low, 100 * share.high)
            figures.append(Figure(label, *percent))
    return figures


@pytest.mark.parametrize(
    ("title", "make"),
    [
        ("step: a small MLP", small_mlp),
        ("step: a small residual CNN", residual_cnn),
        ("step: a GPT block", gpt_block),
    ],
)
# PyTorch's and the peers' own.
@pytest.mark.filterwarnings("ignore")
def test_step(benchmark: BenchmarkFixture, title: str, make: Callable[[], Training]) -> None:
    torch.manual_seed(0)
    training = make()
    untimed(training, 20)()
    steps = max(1, round(BLOCK_NS / (untimed(training, 20)() / 20)))
    with lineup([peer for peer in PEERS if peer.in_steps]) as line:
        arms: dict[str, Callable[[], float]] = {
            label: untimed(training, steps) for label in (UNTIMED, UNTIMED_AGAIN)
        }
        arms |= {peer.name: marked(training, way, steps) for peer, way in line.ways.items()}
        results: dict[str, NDArray[np.float64]] = {}

        def measure() -> None:
            results.update(interleaved(arms, rounds=ROUNDS, seconds=SECONDS))

        # The rounds are ours: each arm is compared with the same round of another.
        benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
        note_missing(benchmark, line)
    benchmark.extra_info["title"] = title
    benchmark.extra_info["figures"] = [each.to_dict() for each in step_figures(results, steps)]
