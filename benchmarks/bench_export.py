# SPDX-License-Identifier: Apache-2.0
"""A million spans as CSV, beside pyarrow's writer on the same columns."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
from numpy.typing import NDArray
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.board import Board
from benchmarks.race import Contender, race, timed
from pyinstrument_gpu.run import Run

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns", "blocked_ns")


def test_csv(
    benchmark: BenchmarkFixture, board: Board, million_spans: Path, tmp_path: Path
) -> None:
    run = Run.load(million_spans)
    ours, theirs = tmp_path / "ours.csv", tmp_path / "pyarrow.csv"

    board.races["Export a million spans to CSV"] = race(
        benchmark,
        Contender('run.export("out.csv")', timed(lambda: run.export(ours))),
        [
            Contender(
                "pyarrow.csv.write_csv", timed(lambda: _write_with_pyarrow(run, theirs)), goal=2
            )
        ],
        rounds=7,
    )

    # Both did the same work.
    assert _rows(ours) == _rows(theirs)


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
            **{column: _or_null(spans[column]) for column in _TIMES},
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


def _rows(path: Path) -> bytes:
    """All lines but the header, with the ends of lines alike."""
    return path.read_bytes().replace(b"\r\n", b"\n").partition(b"\n")[2]
