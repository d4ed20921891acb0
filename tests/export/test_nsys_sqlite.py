# SPDX-License-Identifier: Apache-2.0
"""The database in the schema of `nsys export`, read with plain SQL and by `nsys stats`."""

import csv
import io
import os
import re
import resource
import sqlite3
import tempfile
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import pyinstrument_gpu
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.labels import STEP_COLOR, color_of
from pyinstrument_gpu.export.nsys_sqlite import write
from tests.helpers.made_runs import (
    ANCHOR,
    rank,
    run_of,
    runs,
    steps_on_streams,
    syncs_of,
    with_lengths_on_device,
    written,
)
from tests.helpers.nsight import needs_nsight, nvtx_sum

HOST, DEVICE = 1, 2
WAIT_OF_COPY = "wait: copy from pageable memory /home/a, b/data.py:7"
PHASE, STEP = 1, 2
MACHINE = 1 << 48

SPANS = [
    (1, 1, 0, 1, 0, 0, 7, 15, 20, 100, 130, -1, 1),
    (0, 0, 0, 0, 0, 0, 13, 10, 30, 101, 101, -1, 1),
    (0, 0, -1, 0, 1, -1, -1, 12, 12, -1, -1, -1, 0),
]
STEPS = Steps(np.array([(4, 10, 40, 1, 1, True, 0)], STEP_DTYPE))


def rows(data: bytes, query: str) -> list[tuple[Any, ...]]:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with closing(sqlite3.connect(file.name)) as database:
            return database.execute(query).fetchall()


def ranges(data: bytes) -> list[tuple[Any, ...]]:
    return rows(
        data,
        "SELECT start, end, category, color, text, globalTid - (1 << 48), domainId, int64Value"
        " FROM NVTX_EVENTS WHERE eventType = 59 ORDER BY domainId, start, end DESC",
    )


def test_ranges_with_exact_times() -> None:
    run = run_of(SPANS, steps=STEPS, environment={"pid": 3})
    forward, attention = color_of("forward"), color_of("attention")
    row = 3 << 24
    assert ranges(written(write, run)) == [
        (10, 40, STEP, STEP_COLOR, "step", row | 11, HOST, 4),
        (10, 30, PHASE, forward, "forward", row | 11, HOST, 0),
        (12, 12, PHASE, forward, "forward", row | 12, HOST, None),
        (15, 20, PHASE, attention, "attention", row | 11, HOST, 0),
        (100, 130, PHASE, attention, "attention", row | 13, DEVICE, 0),
        (101, 101, PHASE, forward, "forward", row | 14, DEVICE, 0),
    ]


def test_names_of_domains_categories_processes_and_rows() -> None:
    data = written(write, rank(2, 0, SPANS))
    events = "SELECT eventType, domainId, category, text FROM NVTX_EVENTS WHERE eventType != 59"
    assert sorted(rows(data, events), key=str) == [
        *((33, domain, *each) for domain in (1, 2) for each in ((1, "phase"), (2, "step"))),
        *((75, 1, None, "pyinstrument_gpu"), (75, 2, None, "pyinstrument_gpu.gpu")),
    ]
    assert rows(data, "SELECT * FROM PROCESSES") == [(MACHINE | 1 << 24, 1, "rank 2: process")]
    names = "SELECT globalTid & 0xffffff, value FROM ThreadNames JOIN StringIds ON nameId = id"
    assert rows(data, names) == [
        *((11, "MainThread"), (12, "thread 12")),
        *((13, "GPU 0 stream 7"), (14, "GPU 0 stream 13")),
    ]


def test_waits_are_ranges_and_readings_of_metrics_are_marks() -> None:
    metrics = [(1, 4, 25, 0, 0.5), (2, 4, 45, 0, 1 / 3)]
    run = run_of(
        SPANS, steps=STEPS, metric_names=("loss",), metrics=np.array(metrics, METRIC_DTYPE)
    )
    run.syncs = syncs_of(run)
    data = written(write, run)

    events = "SELECT {} FROM NVTX_EVENTS JOIN ThreadNames USING (globalTid) JOIN StringIds"
    waits = events.format("value, start, end, text, int64Value") + " ON nameId = id"
    assert rows(data, f"{waits} WHERE eventType = 59 AND category = 4") == [
        ("MainThread waits", 100, 150, "wait: .item() /home/a, b/train.py:57", 3),
        ("MainThread waits", 200, 1_201, "wait: .item() /home/a, b/train.py:57", None),
        ("MainThread waits", 2_000, 2_005, WAIT_OF_COPY, 4),
        ("thread 12 waits", 150, 150, "wait: .item() /home/a, b/train.py:57", 3),
    ]
    marks = events.format("value, start, end, text, doubleValue, category") + " ON nameId = id"
    assert rows(data, f"{marks} WHERE eventType = 34") == [
        ("metrics/loss", 25, None, "loss", 0.5, 5),
        ("metrics/loss", 45, None, "loss", 1 / 3, 5),
    ]
    named = "SELECT text FROM NVTX_EVENTS WHERE eventType = 33 AND domainId = 1"
    assert rows(data, named) == [("phase",), ("step",), ("sync",), ("metric",)]


def test_facts_about_the_export() -> None:
    run = rank(0, 5, SPANS, duration_ns=1_000)
    run.environment["anchor"] |= {"run_ns": 2, "realtime_ns": ANCHOR["realtime_ns"] + 7}
    data = written(write, run)
    assert rows(data, "SELECT * FROM META_DATA_EXPORT") == [
        ("EXPORT_PRODUCT_NAME", "pyinstrument_gpu"),
        ("EXPORT_PRODUCT_VERSION", pyinstrument_gpu.__version__),
    ]
    assert rows(data, "SELECT * FROM TARGET_INFO_SESSION_START_TIME") == [
        (ANCHOR["realtime_ns"] + 5, "2023-11-14T22:13:20", None)
    ]
    assert rows(data, "SELECT * FROM ANALYSIS_DETAILS") == [(MACHINE, 1_000, 0, 1_000)]
    types = "SELECT DISTINCT eventType FROM NVTX_EVENTS EXCEPT SELECT id FROM ENUM_NSYS_EVENT_TYPE"
    assert rows(data, types) == []


def test_ranks_are_processes_on_one_timeline() -> None:
    data = written(write, rank(1, 1_000, SPANS[2:]), rank(0, 0, SPANS[2:]))
    query = (
        "SELECT name, start FROM NVTX_EVENTS JOIN PROCESSES"
        " ON globalTid >> 24 = globalPid >> 24 WHERE eventType = 59 ORDER BY start"
    )
    assert rows(data, query) == [("rank 0: process", 12), ("rank 1: process", 1_012)]


def test_what_was_open_says_so() -> None:
    run = run_of(
        [],
        steps=Steps.with_open(STEPS.array[:0], Step(1, 20, -1, None, 0, False, 0)),
        open_phases=[OpenPhase("forward", 0, 21, 1, 0)],
        duration_ns=50,
    )
    found = [(begin, end, text) for begin, end, _, _, text, *_ in ranges(written(write, run))]
    assert found == [(20, 50, "step (open)"), (21, 50, "forward (open)")]


def test_names_survive_or_are_replaced() -> None:
    names = ('it\'s "it"', "two\nlines", "\ud800x", "nul\0x", "🚀" * 256)
    run = run_of([(i, i, 0, 0, 0, -1, -1, i, i + 1, -1, -1, -1, 1) for i in range(5)], names)
    texts = [text for _, _, _, _, text, *_ in ranges(written(write, run))]
    assert texts == [*names[:2], "\ufffdx", "nul\ufffdx", names[4]]


def test_full_disk_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ExportError, match="cannot make a database in"):
            run_of(SPANS).export(tmp_path / "run.sqlite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "run.sqlite").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.sqlite"]


@settings(max_examples=20)
@given(runs(with_modules=True).map(with_lengths_on_device))
def test_any_run(run: Run) -> None:
    """Nothing is lost, moved, or counted twice."""
    found = Counter((*each[:2], *each[4:5], *each[6:]) for each in ranges(written(write, run)))
    expected: Counter[tuple[Any, ...]] = Counter()
    for span in run.spans:
        name = _stored(run.names[span["phase"]])
        number = None if span["step"] < 0 else int(span["step"])
        expected[int(span["host_begin_ns"]), int(span["host_end_ns"]), name, HOST, number] += 1
        if span["device_begin_ns"] >= 0:
            begin_ns, end_ns = int(span["device_begin_ns"]), int(span["device_end_ns"])
            expected[begin_ns, end_ns, name, DEVICE, number] += 1
    for step in run.steps:
        expected[step.begin_ns, step.end_ns, "step", HOST, step.index] += 1
    for index, begin_ns, end_ns in steps_on_streams(run):
        expected[begin_ns, end_ns, "step", DEVICE, index] += 1
    for span in run.module_spans:
        suffix = ("", " (backward)", " (recompute)")[span["kind"]]
        name = _stored(run.module_names[span["module"]]) + suffix
        number = None if span["step"] < 0 else int(span["step"])
        expected[int(span["host_begin_ns"]), int(span["host_end_ns"]), name, HOST, number] += 1
        if span["device_begin_ns"] >= 0:
            begin_ns, end_ns = int(span["device_begin_ns"]), int(span["device_end_ns"])
            expected[begin_ns, end_ns, name, DEVICE, number] += 1
    for phase in run.open_phases:
        name = _stored(run.names[run.path_names[run.paths.index(phase.path)]])
        end_ns = max(phase.begin_ns, run.duration_ns)
        number = None if phase.step < 0 else phase.step
        expected[phase.begin_ns, end_ns, f"{name} (open)", HOST, number] += 1
    assert found == expected


def _stored(name: str) -> str:
    return re.sub("[\ud800-\udfff\0]", "\ufffd", name)


@needs_nsight
@pytest.mark.thorough
def test_nsys_stats_sums_to_the_ns(tmp_path: Path) -> None:
    """`nsys stats` finds each phase as often and as long as the run has it."""
    generator = np.random.default_rng(0)
    begins = np.cumsum(generator.integers(0, 10**6, 3_000))
    ends = begins + generator.integers(0, 10**6, 3_000)
    spans = [
        (i % 3, i % 3, i // 10, 0, i % 2, 0, i % 4, begin, end, begin + 7, end + i, -1, 1)
        for i, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True))
    ]
    steps = [(i, i * 10**6, i * 10**6 + i, 1, 1, True, 0) for i in range(300)]
    names = ("forward", 'it\'s "it"', "über 🚀")
    run = run_of(spans, names, steps=Steps(np.array(steps, STEP_DTYPE)))
    run.export(tmp_path / "run.sqlite")

    found = {
        row["Range"]: (int(row["Instances"]), int(row["Total Time (ns)"]))
        for row in csv.DictReader(io.StringIO(nvtx_sum(tmp_path / "run.sqlite")))
    }
    expected = {"pyinstrument_gpu:step": (300, sum(range(300)))}
    on_streams = [end - begin for _, begin, end in steps_on_streams(run)]
    expected["pyinstrument_gpu.gpu:step"] = len(on_streams), sum(on_streams)
    for domain, column in (("pyinstrument_gpu", "host"), ("pyinstrument_gpu.gpu", "device")):
        for i, name in enumerate(names):
            of_phase = run.spans[run.spans["phase"] == i]
            durations_ns = of_phase[f"{column}_end_ns"] - of_phase[f"{column}_begin_ns"]
            expected[f"{domain}:{name}"] = (len(of_phase), int(durations_ns.sum()))
    assert found == expected
