# SPDX-License-Identifier: Apache-2.0
"""A million spans on disk: their size, and the time to read them back."""

from pathlib import Path

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, timed
from benchmarks.gpu.figure import Figure
from benchmarks.race import race
from pyinstrument_gpu.core.run import Run

ALLOWANCE_NS = 300_000_000
BYTES_PER_SPAN = 64


def test_load(benchmark: BenchmarkFixture, million_spans: Path) -> None:
    read_bytes = timed(lambda: np.fromfile(million_spans, np.uint8))
    peer = Contender(
        "numpy.fromfile of the same bytes, and 0.3 s", lambda: read_bytes() + ALLOWANCE_NS
    )
    race(
        benchmark,
        "load: a run file of a million spans",
        Contender("Run.load", timed(lambda: Run.load(million_spans))),
        [peer],
        rounds=15,
        goals={peer.label: 1},
    )
    size_bytes = million_spans.stat().st_size / len(Run.load(million_spans).spans)
    size = Figure("the file", size_bytes, "bytes per span", goal=BYTES_PER_SPAN)
    benchmark.extra_info["figures"] = [size.to_dict()]
