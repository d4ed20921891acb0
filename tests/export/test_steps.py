# SPDX-License-Identifier: Apache-2.0
"""The table of steps, as CSV and as Parquet."""

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export import csv, export, parquet
from tests.helpers.csv_rows import csv_rows
from tests.helpers.made_runs import rank, run_of, runs, syncs_of, written


def span(path: int, step: int, begin: int, end: int, thread: int = 0) -> tuple[int, ...]:
    return (path, path, step, 0, thread, -1, -1, begin, end, -1, -1, -1, int(thread == 0))


SPANS = [
    span(1, 3, 110, 130),
    span(0, 3, 105, 150),
    span(0, 3, 160, 165),
    span(2, 3, 100, 190, thread=1),
    span(0, 4, 210, 290),
]
STEPS = np.array(
    [
        (3, 100, 200, 32.0, 1, True, 0),
        (4, 200, 300, math.nan, 2, False, 0),
        (5, 300, 350, 0.5, 1, True, 0),
        (6, 400, -1, math.nan, 1, False, 0),
    ],
    STEP_DTYPE,
)
NAMES = ("forward", "attention", "load")


def a_run(**parts: Any) -> Run:
    return run_of(SPANS, NAMES, steps=Steps(STEPS), duration_ns=500, **parts)


def rows_of(*of_runs: Run, **options: bool) -> list[dict[str, str]]:
    return csv_rows(written(csv.write, *of_runs, steps=True, **options).decode())


def test_a_row_for_each_step_with_what_it_spent_where() -> None:
    device_ns = np.array([7, 40, 2, -1, -1])
    rows = rows_of(a_run(span_device_ns=device_ns))

    assert list(rows[0]) == [
        *("step", "begin_ns", "duration_ns", "samples", "items", "complete"),
        *("thread", "thread_name", "outside_phases_ns"),
        *("host_ns/forward", "host_ns/forward/attention"),
        *("device_ns/forward", "device_ns/forward/attention"),
    ]
    assert [list(row.values()) for row in rows] == [
        ["3", "100", "100", "32.0", "1", "1", "0", "MainThread", "50", "50", "20", "42", "7"],
        ["4", "200", "100", "", "2", "0", "0", "MainThread", "20", "80", "0", "", ""],
        ["5", "300", "50", "0.5", "1", "1", "0", "MainThread", "50", "0", "0", "", ""],
        # It was open: what it spent so far is not what it spent.
        ["6", "400", "", "", "1", "0", "0", "MainThread", "", "", "", "", ""],
    ]


def test_a_step_that_lacks_spans_has_no_times_of_phases() -> None:
    run = a_run(dropped={"span_history": 2}, phases_recorded=7)
    rows = rows_of(run)
    # The first span that is left ended in step 3, so what is missing may be of that one too.
    assert [row["outside_phases_ns"] for row in rows] == ["", "20", "50", ""]
    assert [row["host_ns/forward"] for row in rows] == ["", "80", "0", ""]
    assert [row["duration_ns"] for row in rows] == ["100", "100", "50", ""]


def test_ranks_have_the_columns_of_all(tmp_path: Path) -> None:
    first = rank(0, 0, SPANS[:3], names=NAMES[:2], steps=Steps(STEPS[:1]))
    second = rank(1, 1_000, [span(0, 4, 210, 290)], names=("eval",), steps=Steps(STEPS[1:2]))

    rows = rows_of(first, second)
    names = [name for name in rows[0] if name.startswith("host_ns")]
    assert names == ["host_ns/forward", "host_ns/forward/attention", "host_ns/eval"]
    assert [(row["rank"], row["begin_ns"], *(row[name] for name in names)) for row in rows] == [
        ("0", "100", "50", "20", "0"),
        ("1", "1200", "0", "0", "80"),
    ]
    export([first, second], f"{tmp_path}/steps/", steps=True)
    table = pyarrow.parquet.read_table(tmp_path / "steps")
    assert table["host_ns/eval"].to_pylist() == [0, 80]


def test_paths_beyond_the_64th_share_a_column() -> None:
    names = [f"p{number}" for number in range(70)]
    spans = [span(number, 3, 100 + number, 101 + number) for number in range(70)]
    run = run_of(spans, names, path_parents=[-1] * 70, steps=Steps(STEPS[:1]))

    (row,) = rows_of(run)
    assert [name for name in row if "/" in name] == [
        *(f"host_ns/p{number}" for number in range(64)),
        "host_ns/other",
    ]
    assert (row["host_ns/p63"], row["host_ns/other"], row["outside_phases_ns"]) == ("1", "6", "30")


@settings(max_examples=20)
@given(run=runs())
def test_any_run_has_a_row_for_each_step(run: Run) -> None:
    rows = rows_of(run)
    assert [int(row["step"]) for row in rows] == [step.index for step in run.steps]


@pytest.mark.parametrize("table", ["steps", "metrics", "syncs"])
def test_parquet_says_what_the_csv_says(table: str) -> None:
    values = [(1, -1, 5, 0, math.nan), (2, 4, 6, 1, -0.5), (2, 4, 6, 0, math.inf)]
    both = [
        rank(
            number,
            100 * number,
            SPANS,
            names=NAMES,
            steps=Steps(STEPS),
            metric_names=("loss", "accuracy, @1"),
            metrics=np.array(values, METRIC_DTYPE),
        )
        for number in range(2)
    ]
    for run in both:
        run.syncs = syncs_of(run)

    for some in (both, both[:1], [run_of([])]):
        text = written(csv.write, *some, **{table: True}).decode()
        found = pyarrow.parquet.read_table(
            io.BytesIO(written(parquet.write, *some, **{table: True}))
        )
        rows = [
            {name: "" if value is None else str(value) for name, value in row.items()}
            for row in found.to_pylist()
        ]
        assert rows == csv_rows(text)
        assert found.column_names == text.split("\r\n", 1)[0].split(",")
    assert len(csv_rows(written(csv.write, *both, **{table: True}).decode())) > 4
