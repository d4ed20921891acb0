# SPDX-License-Identifier: Apache-2.0
"""A million spans in each format, beside pyarrow's CSV writer on the same columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, timed
from benchmarks.race import race
from pyinstrument_gpu.core.run import Run

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns", "blocked_ns")


@pytest.mark.parametrize(
    ("suffix", "goal"), [(".csv", 2), (".json", 6), (".parquet", 1), (".nvtxt", 3)]
)
def test_export(
    benchmark: BenchmarkFixture,
    million_spans: Path,
    tmp_path: Path,
    suffix: str,
    goal: float,
) -> None:
    run = Run.load(million_spans)
    ours, theirs = tmp_path / f"ours{suffix}", tmp_path / "pyarrow.csv"

    peer = Contender("pyarrow.csv.write_csv", timed(lambda: _write_with_pyarrow(run, theirs)))
    race(
        benchmark,
        f"export: a million spans as {suffix}",
        Contender(f'run.export("out{suffix}")', timed(lambda: run.export(ours))),
        [peer],
        rounds=7,
        goals={peer.label: goal},
    )

    # Both did the same work.
    assert _COUNTS[suffix](ours) == _csv_rows(theirs) == len(run.spans)


def _csv_rows(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1


def _trace_phases(path: Path) -> int:
    return path.read_bytes().count(b'"cat":"phase"')


def _parquet_rows(path: Path) -> int:
    rows: int = pyarrow.parquet.read_metadata(path).num_rows
    return rows


def _nvtxt_phases(path: Path) -> int:
    """Without steps, and numbers of steps."""
    text = path.read_bytes()
    return text.count(b"\nRangePush, ") - text.count(b', "step ') - text.count(b', "step/')


_COUNTS = {
    ".csv": _csv_rows,
    ".json": _trace_phases,
    ".parquet": _parquet_rows,
    ".nvtxt": _nvtxt_phases,
}


def _write_with_pyarrow(run: Run, path: Path) -> None:
    spans = run.spans
    table = pyarrow.table(
        {
            "phase": _names(spans["phase"], run.names),
            "path": _names(spans["path"], run.paths),
            "step": _or_null(spans["step"]),
            "depth": np.ascontiguousarray(spans["depth"]),
            "thread": np.ascontiguousarray(spans["thread"]),
            "thread_name": _names(spans["thread"], [thread.name for thread in run.threads]),
            "device": _or_null(spans["device"]),
            "stream": _or_null(spans["stream"]),
            "stream_name": pyarrow.nulls(len(spans), pyarrow.string()),
            **{column: _or_null(spans[column]) for column in _TIMES},
            "device_ns": _or_null(run.span_device_ns),
            "flags": np.ascontiguousarray(spans["flags"]),
        }
    )
    # No name here needs quotes, and looking for some costs it time.
    options = pyarrow.csv.WriteOptions(quoting_style="none")
    pyarrow.csv.write_csv(table, path, options)


def _names(ids: NDArray[np.uint32], names: Sequence[str]) -> Any:
    indices = pyarrow.array(ids.astype(np.int32))
    return pyarrow.DictionaryArray.from_arrays(indices, list(names)).cast(pyarrow.string())


def _or_null(column: NDArray[Any]) -> Any:
    return pyarrow.array(np.ascontiguousarray(column), mask=column < 0)
