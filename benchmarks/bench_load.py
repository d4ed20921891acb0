# SPDX-License-Identifier: Apache-2.0
"""A million spans on disk: their size, and the time to read them back."""

from pathlib import Path

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.board import Board, Fact
from benchmarks.race import Contender, race, timed
from pyinstrument_gpu.run import Run


def test_load(benchmark: BenchmarkFixture, board: Board, million_spans: Path) -> None:
    board.races["Load a run file of a million spans"] = race(
        benchmark,
        Contender("Run.load", timed(lambda: Run.load(million_spans))),
        [
            Contender(
                "numpy.fromfile of the same bytes (compared: and 0.3 s)",
                timed(lambda: np.fromfile(million_spans, np.uint8)),
                goal=1,
                allowance_ns=300_000_000,
            )
        ],
        rounds=15,
    )


def test_size(board: Board, million_spans: Path) -> None:
    spans = len(Run.load(million_spans).spans)
    board.facts.append(
        Fact("Run file", million_spans.stat().st_size / spans, "bytes per span", goal=64)
    )
