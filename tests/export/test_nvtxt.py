# SPDX-License-Identifier: Apache-2.0
"""NVTXT, read back by a plain reader of its grammar."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from pyinstrument_gpu.core.record import OpenPhase, Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.export.labels import STEP_COLOR, color_of
from pyinstrument_gpu.export.nvtxt import write
from tests.helpers.made_runs import (
    rank,
    run_of,
    runs,
    syncs_of,
    with_lengths_on_device,
    written,
)
from tests.helpers.nsight import host_program, needs_nsight, read_nvtxt

FORWARD, ATTENTION = 0xFF42A697, 0xFFF28E2B


def span(
    name: int, begin_ns: int, end_ns: int, thread: int = 0, step: int = 0, **device: int
) -> tuple[int, ...]:
    where = (device.get("device", -1), device.get("stream", -1))
    times = (device.get("device_begin_ns", -1), device.get("device_end_ns", -1))
    return (name, name, step, 0, thread, *where, begin_ns, end_ns, *times, -1, 1)


def steps_of(*steps: tuple[Any, ...]) -> Steps:
    """Steps of index, begin and end."""
    rows = [(index, begin, end, 1, 1, True, 0) for index, begin, end in steps]
    return Steps(np.array(rows, STEP_DTYPE))


def rows_of(run: Run) -> dict[str, list[tuple[str, int, int]]]:
    """Text, begin and end of the ranges of each row, by its name; in the order of time."""
    found = read_nvtxt(written(write, run))
    rows: dict[str, list[tuple[str, int, int]]] = {name: [] for name in found.rows.values()}
    for each in sorted(found.ranges, key=lambda each: (each.begin_ns, -each.end_ns)):
        rows[found.rows[each.process, each.row]].append((each.text, each.begin_ns, each.end_ns))
    return rows


def test_whole_text() -> None:
    run = run_of(
        [span(1, 15, 20), span(0, 12, 30), span(0, 40, 50), span(1, 1_000, 12_345_678_901, 1, -1)],
        steps=steps_of((7, 10, 40)),
        environment={"pid": 4242, "rank": 3, "command": ["/usr/bin/python3", "my train.py"]},
    )
    assert written(write, run).decode() == (
        "# Phases recorded by pyinstrument_gpu. Nsight Systems shows them after\n"
        "#   ImportNvtxt --cmd create -n THIS.nvtxt -o REPORT.nsys-rep\n"
        "TimeBase = Relative\n"
        'SetFileDisplayName, "pyinstrument_gpu"\n'
        "@RangePush, Time, Color, Message\n"
        "@RangePop, Time\n"
        "ProcessId = 4242\n"
        "NameProcess, 4242, \"rank 3: python3 'my train.py'\"\n"
        "ThreadId = 11\n"
        'NameOsThread, 4242, 11, "MainThread"\n'
        'RangePush, 10, 0xFF8C8C8C, "step 7"\n'
        'RangePush, 12, 0xFF42A697, "forward"\n'
        'RangePush, 15, 0xFFF28E2B, "attention"\n'
        "RangePop, 20\n"
        "RangePop, 30\n"
        "RangePop, 40\n"
        'RangePush, 40, 0xFF42A697, "forward"\n'
        "RangePop, 50\n"
        "ThreadId = 12\n"
        'NameOsThread, 4242, 12, "thread 12"\n'
        'RangePush, 1000, 0xFFF28E2B, "attention"\n'
        "RangePop, 12345678901\n"
    )


def test_colours_are_stable() -> None:
    assert color_of("forward") == FORWARD
    assert color_of("attention") == ATTENTION
    assert color_of("über") == 0xFF806B4C
    assert color_of("\ud800") >> 24 == STEP_COLOR >> 24 == 0xFF


def test_ends_that_meet_begins_nest() -> None:
    run = run_of([span(1, 0, 5), span(1, 5, 10), span(0, 0, 10), span(0, 10, 20)])
    assert rows_of(run) == {
        "MainThread": [
            *(("forward", 0, 10), ("attention", 1, 5)),
            *(("attention", 5, 10), ("forward", 10, 20)),
        ]
    }


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([(5, 5)], [(5, 6)]),
        ([(5, 5), (5, 5)], [(5, 6), (5, 6)]),
        ([(5, 9), (5, 10), (5, 10)], [(5, 10), (6, 10), (7, 9)]),
        ([(5, 6), (5, 10)], [(5, 10), (5, 6)]),
        ([(6, 7), (5, 7), (5, 9), (0, 9)], [(0, 9), (5, 9), (5, 7), (6, 7)]),
        ([(5, 5), (0, 5), (5, 8)], [(0, 5), (5, 8), (5, 6)]),
    ],
)
def test_what_cannot_be_drawn_is_moved_by_the_least(spans: Any, expected: Any) -> None:
    (row,) = rows_of(run_of([span(0, *times) for times in spans])).values()
    assert row == [("forward", *times) for times in expected]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ('say "hi"', "'say \"hi\"'"),
        ("it's", '"it\'s"'),
        ("""it's "both\"""", "\"it's 'both'\""),
        ("two\r\nlines\tand\0nul", '"two  lines and nul"'),
        ("a, b # c\\d", '"a, b # c\\d"'),
        ("a\\", '"a\\ "'),
        ("""\\"'""", "\"\\''\""),
        ("\ud800x", '"\ufffdx"'),
        ("🚀" * 256, f'"{"🚀" * 256}"'),
        ("</script>", '"</script>"'),
    ],
)
def test_names_survive_or_are_replaced(name: str, line: str) -> None:
    data = written(write, run_of([span(0, 1, 2)], (name,)))
    assert f"RangePush, 1, 0x{color_of(name):08X}, {line}\n".encode() in data


def test_ids_are_small_and_differ() -> None:
    limit = 1 << 24
    threads = [Thread(id, str(id)) for id in (limit, 5, 5, 0, limit - 1)]
    spans = [span(0, 1, 2, thread) for thread in range(len(threads))]
    many = [run_of(spans, threads=threads, environment={"pid": pid}) for pid in (limit, 9, 9)]
    for offset, run in enumerate(many):
        run.environment["anchor"] = {"run_ns": 0, "realtime_ns": offset}
    found = read_nvtxt(written(write, *many))
    assert list(found.processes) == [10, 9, 11]
    # ImportNvtxt knows rows by their names: those of the same name differ by spaces at their ends.
    assert len(set(found.rows.values())) == len(found.rows) == 15
    rows = {row: name.rstrip() for (process, row), name in found.rows.items() if process == 9}
    assert rows == {
        5: "5",
        limit - 1: str(limit - 1),
        1: str(limit),
        2: "5",
        3: "0",
    }


def test_waits_metrics_and_streams_have_rows() -> None:
    spans = [
        (0, 0, 3, 0, 0, 0, 7, 10, 20, 100, 150, -1, 1),
        (1, 1, 3, 1, 0, 0, 7, 12, 18, 110, 140, -1, 1),
        (0, 0, 4, 0, 0, 0, 7, 30, 40, 200, 260, -1, 1),
    ]
    metrics = [(1, 3, 25, 0, 0.5), (1, 3, 25, 1, math.nan), (2, 4, 45, 0, 1 / 3)]
    run = run_of(
        spans,
        steps=steps_of((3, 5, 25), (4, 25, 45)),
        duration_ns=5_000,
        metric_names=('loss "x"', "loss"),
        metrics=np.array(metrics, METRIC_DTYPE),
    )
    run.syncs = syncs_of(run)

    rows = rows_of(run)

    assert list(rows) == [
        *("MainThread", "MainThread waits", "thread 12 waits", "GPU 0 stream 7"),
        *('metrics/loss "x"', "metrics/loss"),
    ]
    assert rows["GPU 0 stream 7"] == [
        *(("forward", 100, 150), ("attention", 110, 140), ("forward", 200, 260)),
    ]
    assert rows["MainThread waits"] == [
        ("wait: .item() /home/a, b/train.py:57", 100, 150),
        ("wait: .item() /home/a, b/train.py:57", 200, 1_201),
        ("wait: copy from pageable memory /home/a, b/data.py:7", 2_000, 2_005),
    ]
    assert rows["thread 12 waits"] == [("wait: .item() /home/a, b/train.py:57", 150, 151)]
    assert rows['metrics/loss "x"'] == [('loss "x" 0.5', 25, 45), ('loss "x" 0.333333', 45, 5_000)]
    assert rows["metrics/loss"] == [("loss nan", 25, 5_000)]


def test_what_was_open_ends_with_the_run_and_says_so() -> None:
    run = run_of(
        [span(0, 5, 6)],
        steps=Steps.with_open(steps_of((0, 0, 10)).array, Step(1, 20, -1, None, 0, False, 0)),
        open_phases=[
            OpenPhase("forward", 0, 21, 1, 0),
            OpenPhase("forward/attention", 0, 21, 1, 1),
            OpenPhase("forward", 1, 90, 1, 0),
        ],
        duration_ns=50,
        complete=False,
    )
    assert rows_of(run) == {
        "MainThread": [
            ("step 0", 0, 10),
            ("forward", 5, 6),
            ("step 1 (open)", 20, 50),
            ("forward (open)", 21, 50),
            ("attention (open)", 22, 50),
        ],
        "thread 12": [("forward (open)", 90, 91)],
    }


def test_ranks_are_processes_on_one_timeline() -> None:
    first, second = (rank(i, 1_000 * i, [span(0, 1, 2)]) for i in range(2))
    found = read_nvtxt(written(write, second, first))
    names = [(found.processes[each.process], each.begin_ns) for each in found.ranges]
    assert sorted(names) == [("rank 0: process", 1), ("rank 1: process", 1_001)]


@settings(max_examples=20)
@given(runs(with_modules=True).map(with_lengths_on_device))
def test_any_run(run: Run) -> None:
    found = read_nvtxt(written(write, run))
    closed = [step for step in run.steps if step.end_ns >= 0]
    expected = Counter(
        [(begin, end) for begin, end in run.spans[["host_begin_ns", "host_end_ns"]].tolist()]
        + [(step.begin_ns, step.end_ns) for step in closed]
        + [(phase.begin_ns, run.duration_ns) for phase in run.open_phases]
        + run.module_spans[["host_begin_ns", "host_end_ns"]].tolist()
        + [
            (begin, end)
            for spans in (run.spans, run.module_spans)
            for begin, end in spans[["device_begin_ns", "device_end_ns"]].tolist()
            if begin >= 0
        ]
    )
    ends = Counter(max(begin + 1, end) for begin, end in expected.elements())
    assert Counter(each.end_ns for each in found.ranges) == ends
    begins = sorted(begin for begin, _ in expected.elements())
    moved = sorted(each.begin_ns for each in found.ranges)
    ahead = [after - before for before, after in zip(begins, moved, strict=True)]
    assert all(0 <= each < len(begins) for each in ahead)


@needs_nsight
@pytest.mark.thorough
def test_nsight_imports_every_event(tmp_path: Path) -> None:
    run = run_of(
        [span(0, 12, 30), span(1, 15, 20), span(0, 40, 40)],
        steps=steps_of((7, 10, 40)),
        names=('it\'s "it"', "b\\"),
    )
    text, report = tmp_path / "x.nvtxt", tmp_path / "x.nsys-rep"
    run.export(text)
    printed = host_program("ImportNvtxt", "--cmd", "create", "-n", text, "-o", report)
    assert "8 events imported" in printed
    assert report.exists()
