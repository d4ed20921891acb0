# SPDX-License-Identifier: Apache-2.0
"""What a stream was given, in every format of a timeline."""

from pathlib import Path

from pyinstrument_gpu.core.run import Run
from tests.helpers.made_runs import run_of
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


STEPS = 20
LASTED = [
    (1_000 * step + begin_ns, 1_000 * step + end_ns, name)
    for step in range(STEPS)
    for begin_ns, end_ns, name in ((100, 400, "forward"), (400, 1_000, "backward"))
]


def test_phases_without_work_have_no_range_on_the_stream(tmp_path: Path) -> None:
    training(STEPS).export(tmp_path / "x.json")
    trace = Trace((tmp_path / "x.json").read_bytes())

    assert [(one.begin_ns, one.end_ns, one.name) for one in trace.slices("gpu")] == LASTED
    assert len(trace.slices("phase")) == 5 * STEPS
    flows = [one for one in trace.events if "bind_id" in one]
    assert len({one["bind_id"] for one in flows}) == 2 * STEPS
    assert len(flows) == 4 * STEPS  # each leaves a phase and arrives


def test_nsight_has_the_same_ranges(tmp_path: Path) -> None:
    training(STEPS).export(tmp_path / "x.nvtxt")

    found = read_nvtxt((tmp_path / "x.nvtxt").read_bytes())
    on_stream = [
        (each.begin_ns, each.end_ns, each.text)
        for each in found.ranges
        if found.rows[each.process, each.row].startswith("GPU")
    ]
    assert sorted(on_stream) == LASTED
