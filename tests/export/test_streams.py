# SPDX-License-Identifier: Apache-2.0
"""What a stream was given, in every format of a timeline: nested as the phases were."""

from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export import nvtxt, perfetto, ranges
from tests.helpers.made_runs import run_of, runs, written
from tests.helpers.nsight import read_nvtxt
from tests.helpers.trace_events import Trace

NAMES = ("data", "forward", "loss", "zero_grad", "backward")
PARENTS = (-1, -1, 1, -1, -1)


def span(
    path: int, host: tuple[int, int], device: tuple[int, int], depth: int = 0
) -> tuple[int, ...]:
    return (path, path, 0, depth, 0, 0, 0, *host, *device, -1, 1)


def training(steps: int) -> Run:
    """In each step `data` and `zero_grad` give the GPU nothing to do, nor does `loss`, with which
    `forward` ends."""
    spans = []
    for step in range(steps):
        host, device = 1_000 * step, 1_000 * step + 100
        spans += [
            span(0, (host, host + 10), (device, device)),
            span(2, (host + 30, host + 39), (device + 300, device + 300), depth=1),
            span(1, (host + 20, host + 40), (device, device + 300)),
            span(3, (host + 50, host + 60), (device + 300, device + 300)),
            span(4, (host + 70, host + 80), (device + 300, device + 900)),
        ]
    return run_of(spans, NAMES, path_parents=PARENTS)


def parents(times: list[tuple[int, int, str]]) -> list[tuple[str, str | None]]:
    """What each range is inside of, as Perfetto has it: by begin and then the longest first; what
    ends where another begins is over, unless neither has a length."""
    found = []
    stack: list[tuple[int, int, str]] = []
    for begin, end, name in sorted(times, key=lambda each: (each[0], -each[1])):
        while stack and (
            stack[-1][1] < begin
            or (stack[-1][1] == begin and not stack[-1][0] == stack[-1][1] == begin == end)
        ):
            stack.pop()
        assert not stack or end <= stack[-1][1]
        found.append((name, stack[-1][2] if stack else None))
        stack.append((begin, end, name))
    return found


STEP = [
    ("data", None),
    ("forward", None),
    ("loss", "forward"),
    ("zero_grad", None),
    ("backward", None),
]


def perfetto_times(run: Run, folder: Path) -> list[tuple[int, int, str]]:
    run.export(folder / "x.json")
    slices = Trace((folder / "x.json").read_bytes()).slices("gpu")
    return [(one.begin_ns, one.end_ns, one.name) for one in slices]


def test_phases_without_work_nest_as_their_paths_do(tmp_path: Path) -> None:
    times = perfetto_times(training(50), tmp_path)

    assert parents(times) == STEP * 50
    # What meets a range without length moves on by a nanosecond, and nothing else does.
    assert times[:6] == [
        (100, 100, "data"),
        (101, 401, "forward"),
        (400, 400, "loss"),
        (401, 401, "zero_grad"),
        (402, 1_000, "backward"),
        (1_100, 1_100, "data"),
    ]


def test_nsight_has_the_same_ranges(tmp_path: Path) -> None:
    run = training(20)
    run.export(tmp_path / "x.nvtxt")

    found = read_nvtxt((tmp_path / "x.nvtxt").read_bytes())
    on_stream = [
        (each.begin_ns, each.end_ns, each.text)
        for each in found.ranges
        if found.rows[each.process, each.row].startswith("GPU")
    ]
    assert parents(on_stream) == STEP * 20


@settings(max_examples=15)
@given(runs(with_modules=True), st.integers(1, 5))
def test_any_ranges_nest_and_are_moved_by_little(run: Run, window: int) -> None:
    """Whatever the host did: `read_nvtxt` and `parents` check that none overlap."""
    spans = (run.spans, run.module_spans)
    with mock.patch.object(ranges, "WINDOW_ROWS", window):
        read_nvtxt(written(nvtxt.write, run))
        slices = Trace(written(perfetto.write, run)).slices("gpu")
    tracks: dict[str, list[tuple[int, int, str]]] = {}
    for one in slices:
        tracks.setdefault(one.track, []).append((one.begin_ns, one.end_ns, one.name))
    for track in tracks.values():
        parents(track)
    for column, index in (("device_begin_ns", 0), ("device_end_ns", 1)):
        before = sorted(time for each in spans for time in each[column].tolist() if time >= 0)
        after = sorted(each[index] for track in tracks.values() for each in track)
        assert all(0 <= b - a <= len(before) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("window", [2, 5])
def test_ranges_nest_window_by_window(tmp_path: Path, window: int) -> None:
    run = training(20)
    whole = perfetto_times(run, tmp_path)
    with mock.patch.object(ranges, "WINDOW_ROWS", window):
        times = perfetto_times(run, tmp_path)
    # Only an end that was told already stays, and what began last in `forward` is behind it then.
    outside = [pair for pair in parents(times) if pair not in STEP]
    assert set(outside) <= {("loss", None)}
    assert len(times) == len(whole)
    assert all(abs(a[0] - b[0]) <= 2 for a, b in zip(times, whole, strict=True))


def test_modules_without_work_are_in_the_phase_that_called_them(tmp_path: Path) -> None:
    """A dropout that does nothing at the begin of `forward`, a flatten at its end."""
    passes = [
        (21, 22, 0, 0, 0, 0, 1, 0, 0, 100, 100),
        (23, 24, 1, 0, 0, 0, 1, 0, 0, 100, 100),
        (25, 29, 2, 0, 0, 0, 1, 0, 0, 100, 400),
        (27, 28, 3, 0, 0, 0, 1, 1, 0, 400, 400),
    ]
    run = training(1)
    run = run_of(
        run.spans,
        NAMES,
        path_parents=PARENTS,
        module_names=("dropout", "identity", "layer", "flatten"),
        module_spans=np.array(passes, MODULE_SPAN_DTYPE),
    )

    assert parents(perfetto_times(run, tmp_path)) == [
        ("data", None),
        ("forward", None),
        ("dropout", "forward"),
        ("identity", "forward"),
        ("layer", "forward"),
        ("flatten", "layer"),
        ("loss", "forward"),
        ("zero_grad", None),
        ("backward", None),
    ]
