# SPDX-License-Identifier: Apache-2.0
"""A million spans on disk: their size, and the time to read them back."""

from pathlib import Path

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks import titles
from benchmarks.board import Board
from benchmarks.contender import Contender, timed
from benchmarks.race import race
from benchmarks.row import Fact
from pyinstrument_gpu.run import Run

ALLOWANCE_NS = 300_000_000
BYTES_PER_SPAN = 64


def test_load(benchmark: BenchmarkFixture, board: Board, million_spans: Path) -> None:
    read_bytes = timed(lambda: np.fromfile(million_spans, np.uint8))
    peer = Contender(
        "numpy.fromfile of the same bytes, and 0.3 s", lambda: read_bytes() + ALLOWANCE_NS
    )
    board.races[titles.LOAD] = race(
        benchmark,
        Contender("Run.load", timed(lambda: Run.load(million_spans))),
        [peer],
        rounds=15,
        goals={peer.label: 1},
    )


def test_size(board: Board, million_spans: Path) -> None:
    spans = len(Run.load(million_spans).spans)
    size_bytes = million_spans.stat().st_size
    board.facts.append(Fact("Run file", size_bytes / spans, "bytes per span", BYTES_PER_SPAN))
