# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' own parts: how they reckon, and the page of what they found."""

import functools
import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender
from benchmarks.gpu.figure import Figure
from benchmarks.install_peers import install, wanted
from benchmarks.page import markdown
from benchmarks.race import race
from benchmarks.row import Row

# --- how they reckon ---


class FakeBenchmark:
    """Calls what is measured as pytest-benchmark does."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}

    def pedantic(self, target: Callable[[], object], rounds: int) -> None:
        for _ in range(rounds):
            target()


def times(*values_ns: int) -> Callable[[], int]:
    """A round to warm up, which must not count, then these."""
    left = [10**9, *values_ns]
    return lambda: left.pop(0)


def test_a_race() -> None:
    loop = Contender("loop", times(10, 20, 30), uses=10)
    ours = Contender("ours", times(60, 70, 110), uses=10, baseline=loop)
    peer = Contender("theirs", times(500, 400, 600), uses=20)
    fake = FakeBenchmark()
    benchmark = cast(BenchmarkFixture, fake)
    rows = race(benchmark, "a title", ours, [peer], 3, {"theirs": 0.21}, {"theirs": "less"})
    assert rows == [
        Row("ours", best_ns=5.0, median_ns=5.0),
        Row("theirs", 20.0, 25.0, best_ratio=0.25, median_ratio=0.2, goal=0.21, note="less"),
    ]
    assert fake.extra_info["title"] == "a title"
    assert [Row(**row) for row in fake.extra_info["rows"]] == rows


def test_a_race_ends_when_its_figures_have_settled() -> None:
    steady = itertools.repeat(100)
    slower_and_slower = itertools.count(100)
    for peer, done in ((steady, 20), (slower_and_slower, 60)):
        ours = Contender("ours", functools.partial(next, itertools.repeat(10)))
        counted = [0]

        def measure(peer: Iterator[int] = peer, counted: list[int] = counted) -> int:
            counted[0] += 1
            return next(peer)

        race(cast(BenchmarkFixture, FakeBenchmark()), "", ours, [Contender("theirs", measure)], 60)
        assert counted[0] == done + 4  # to warm up


@pytest.mark.parametrize(
    ("best", "median", "goal", "said"),
    [
        (0.5, 0.6, 0.6, "met"),
        (0.7, 0.8, 0.6, "not met"),
        (0.5, 0.8, 0.6, "met by the best round only"),
        (0.7, 0.6, 0.6, "met by the median only"),
        (0.5, 0.5, None, ""),
        (None, None, 0.6, ""),
    ],
)
def test_verdicts(best: float | None, median: float | None, goal: float | None, said: str) -> None:
    assert Row("x", 1.0, 1.0, best, median, goal).verdict == said


# --- the page ---


def results() -> dict[str, Any]:
    """As pytest-benchmark's JSON, with one race and one benchmark of other figures."""
    found = [
        {
            "title": "phase: recorded",
            "rows": [
                {"label": "ours", "best_ns": 71.0, "median_ns": 80.0},
                {
                    "label": "a | b",
                    "best_ns": 131.0,
                    "median_ns": 1400.0,
                    "best_ratio": 0.542,
                    "median_ratio": 0.057,
                    "goal": 0.5,
                    "note": "less",
                },
            ],
            "missing": {"theirs": "it is not installed"},
        },
        {"title": "memory", "figures": [Figure("it", 41.5, "bytes per span", goal=64).to_dict()]},
    ]
    return {
        "machine_info": {"cpu": "CPU", "date": "2026-01-02", "nvtx": None},
        "benchmarks": [{"extra_info": each} for each in found],
    }


def test_the_page() -> None:
    page = markdown(json.loads(json.dumps(results())))
    assert page.startswith("# CPU, 2026-01-02\n")
    assert "* nvtx: not installed\n" in page
    assert "| ours | 71 | 80 |  |  |  |  |\n" in page
    assert (
        "| a / b | 131 | 1,400 | 0.542 | 0.057 | <= 0.5: met by the median only | less |\n" in page
    )
    assert "* Missing: theirs: it is not installed\n" in page
    assert "| it | 41.5 bytes per span |  | <= 64 | met |\n" in page


# --- installing peers ---

REQUIRES = [
    "numpy>=1.24",
    'torch>=2.10; extra == "torch"',
    'pyinstrument-gpu[test]; extra == "bench"',
    'nvtx==0.2.17; extra == "bench"',
    "nvidia-resiliency-ext==0.4.1; extra == 'bench'",
    'ruff>=0.9; extra == "dev"',
]


def test_what_is_installed_for_the_benchmarks() -> None:
    assert wanted(REQUIRES) == ["nvtx==0.2.17", "nvidia-resiliency-ext==0.4.1"]


def test_a_peer_that_cannot_be_had_keeps_no_other_away() -> None:
    commands: list[list[str]] = []

    def run(command: list[str]) -> int:
        commands.append(command[3:])
        return 1 if "nvtx==0.2.17" in command else 0

    assert install(wanted(REQUIRES), run) == ["nvtx==0.2.17"]
    assert commands == [
        ["install", "--quiet", "nvtx==0.2.17"],
        ["install", "--quiet", "--no-deps", "nvidia-resiliency-ext==0.4.1"],
    ]
