# SPDX-License-Identifier: Apache-2.0
"""Many spans: statistics are what numpy makes of them."""

import contextlib
import math
import random
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import span_scopes
from pyinstrument_gpu.core.statistics import Scope, Statistic
from tests.helpers.clock import fake_clock
from tests.helpers.endurance import THREADS
from tests.helpers.spans import dropped_of

# A ring holds 8192 spans. What is taken out of it this often never fills it.
SPANS_BETWEEN_SNAPSHOTS = 8000


def test_statistics_of_8_threads_equal_numpys(tmp_path: Path) -> None:
    batches = 3
    barrier = threading.Barrier(THREADS + 1, timeout=600)

    def record() -> None:
        for _ in range(batches):
            for _ in range(SPANS_BETWEEN_SNAPSHOTS // 2):
                with gpu_phase("outer"), gpu_phase("inner"):
                    pass
            barrier.wait()
            barrier.wait()

    threads = [threading.Thread(target=record) for _ in range(THREADS)]
    with pig.record(tmp_path / "run.gpurun") as recording, contextlib.ExitStack() as steps:
        for thread in threads:
            thread.start()
        for batch in range(batches):
            barrier.wait()
            recording.snapshot()
            if batch == batches // 2:
                steps.enter_context(gpu_step())
            barrier.wait()
        for thread in threads:
            thread.join()

    run = Run.load(tmp_path / "run.gpurun")
    assert len(run.spans) == THREADS * batches * SPANS_BETWEEN_SNAPSHOTS
    assert {scope for _, scope in run.statistics} == {Scope.OUTSIDE, Scope.OTHER_THREADS}
    assert_statistics_equal_numpys(run)


def test_statistics_of_all_magnitudes_equal_numpys(tmp_path: Path) -> None:
    seed = 7
    magnitudes = random.Random(seed)
    durations_ns = [int(2 ** magnitudes.uniform(0, 40)) for _ in range(2 * SPANS_BETWEEN_SNAPSHOTS)]

    with (
        fake_clock() as advance_ns,
        pig.record(tmp_path / "run.gpurun") as recording,
        gpu_step(),
    ):
        for number, duration_ns in enumerate(durations_ns, start=1):
            with gpu_phase("x"):
                advance_ns(duration_ns)
            if number % SPANS_BETWEEN_SNAPSHOTS == 0:
                recording.snapshot()

    run = Run.load(tmp_path / "run.gpurun")
    recorded_ns = durations_ns_of(run.spans, "host_")
    assert recorded_ns.tolist() == durations_ns
    assert_statistics_equal_numpys(run)


def assert_statistics_equal_numpys(run: Run) -> None:
    """Fails unless what the recorder folded span by span is what numpy makes of the spans."""
    assert run.complete
    assert run.notes == ()
    assert dropped_of(run) == {}
    scopes = span_scopes(run.spans)
    host_ns = durations_ns_of(run.spans, "host_")
    counted = 0
    for (path, scope), phase in run.statistics.items():
        those = (run.spans["path"] == path) & (scopes == scope)
        assert phase.host is not None
        assert phase.self_host is not None
        assert_equals_numpys(phase.host, host_ns[those])
        assert_equals_numpys(phase.self_host, run.span_self_ns[those])
        counted += phase.count
    assert counted == len(run.spans) == run.phases_recorded


def assert_equals_numpys(statistic: Statistic, values_ns: NDArray[np.int64]) -> None:
    # Python's integers are exact, and do not overflow.
    count, total_ns = len(values_ns), sum(values_ns.tolist())
    squares = sum(value * value for value in values_ns.tolist())
    assert (statistic.count, statistic.total_ns) == (count, total_ns)
    assert statistic.sum_of_squares == squares
    assert statistic.min_ns == values_ns.min()
    assert statistic.max_ns == values_ns.max()
    assert math.isclose(statistic.mean_ns, total_ns / count, rel_tol=1e-12)
    std_ns = math.sqrt(count * squares - total_ns**2) / count
    assert math.isclose(statistic.std_ns, std_ns, rel_tol=1e-9, abs_tol=1e-9)
    indices, counts = np.unique(bucket_of(values_ns), return_counts=True)
    assert statistic.bucket_indices.tolist() == indices.tolist()
    assert statistic.bucket_counts.tolist() == counts.tolist()
    for q, got_ns in (
        (0.5, statistic.p50_ns),
        (0.95, statistic.p95_ns),
        (0.99, statistic.p99_ns),
    ):
        exact_ns = np.quantile(values_ns, q, method="inverted_cdf")
        assert bucket_of(np.array([got_ns])) == bucket_of(np.array([exact_ns]))
        assert abs(got_ns - exact_ns) <= exact_ns / 64


def bucket_of(values: NDArray[Any]) -> NDArray[np.int64]:
    """The buckets as docs/run-file.md defines them, by a way of its own: exact below 2**53."""
    values = values.astype(np.int64)
    exponent = np.frexp(np.maximum(values, 32).astype(float))[1].astype(np.int64) - 1
    return np.where(values < 32, values, (exponent - 4) * 32 + ((values >> (exponent - 5)) & 31))
