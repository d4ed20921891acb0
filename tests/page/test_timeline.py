# SPDX-License-Identifier: Apache-2.0
"""The windows of the timeline hold what the run holds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE
from pyinstrument_gpu.export.labels import COLORS, RangeKind, color_of, colors_of
from pyinstrument_gpu.page.bars import css_color
from pyinstrument_gpu.page.step_series import step_series
from pyinstrument_gpu.page.timeline import DrawnTimeline, DrawnWindow, timeline
from tests.helpers.made_runs import rank, run_of
from tests.helpers.made_script import Script
from tests.page.runs import MS, STEP_NS, training


def made(runs: Sequence[Run], max_bars: int = 20_000) -> DrawnTimeline:
    return timeline(runs, [step_series(run) for run in runs], max_bars)


def bars(window: DrawnWindow, track: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Path, begin by the run's clock, duration and row of each bar."""
    begin_ns = window.plain["begins"][track["run"]]
    assert begin_ns is not None
    return [
        (window.plain["labels"][label][1], begin_ns + begin, duration, row)
        for label, begin, duration, row in zip(
            track["label"], track["begin"], track["duration"], track["row"], strict=True
        )
    ]


def test_the_slowest_the_median_and_the_newest_step_are_chosen() -> None:
    durations = [STEP_NS + i for i in range(20)]
    durations[7], durations[3] = 4 * STEP_NS, 3 * STEP_NS
    found = made([training(durations)])

    chosen = [(window.why, window.step) for window in found.windows]
    assert chosen == [
        ("slowest", 7),
        ("median", 11),
        ("newest", 19),
        ("second slowest", 3),
    ]


def test_a_window_holds_all_of_its_step() -> None:
    run = training()
    window = made([run]).windows[0]
    step = run.steps.by_index(window.step or 0)
    host, device = window.plain["tracks"]

    assert [host["name"], device["name"]] == ["MainThread", "GPU 0 default stream"]
    assert window.plain["step_times"] == [(0, STEP_NS)]
    # Until the device has done what was enqueued in the step: a millisecond behind its end.
    assert window.plain["duration"] == STEP_NS + MS
    begin = step.begin_ns
    assert bars(window, host) == [
        ("step 0", begin, 10 * MS, 0),
        ("forward", begin, 4 * MS, 1),
        ("forward/attention", begin + MS, 2 * MS, 2),
        ("backward", begin + 4 * MS, 5 * MS, 1),
        ("wait: .item() /nowhere/train.py:57", begin + 5 * MS, 3 * MS, 2),
        ("step 1", begin + 10 * MS, 10 * MS, 0),
        ("forward", begin + 10 * MS, 4 * MS, 1),
    ]
    assert bars(window, device) == [
        ("forward", begin + 2 * MS, 4 * MS, 0),
        ("forward/attention", begin + 3 * MS, 2 * MS, 1),
        ("backward", begin + 6 * MS, 5 * MS, 0),
    ]
    kinds = sorted(kind for _, _, kind, *_ in window.plain["labels"])
    assert kinds == [RangeKind.WAIT, *[RangeKind.PHASE] * 3, RangeKind.STEP, RangeKind.STEP]
    colors = {path: color for _, path, _, color, _ in window.plain["labels"]}
    assert colors["forward/attention"] == css_color(color_of("attention"))
    # Host and device times of one span share a number.
    pairs = dict(zip(host["pair"], [path for path, *_ in bars(window, host)], strict=True))
    assert [pairs[pair] for pair in device["pair"]] == [
        "forward",
        "forward/attention",
        "backward",
    ]


def test_a_device_far_behind_makes_no_endless_window() -> None:
    run = training()
    run.spans["device_end_ns"] += 1_000 * MS
    window = made([run]).windows[0]

    assert window.plain["is_cut"]
    assert window.plain["duration"] == 4 * STEP_NS


def test_where_there_is_no_room_the_longest_bars_are_drawn() -> None:
    names = ["outer", "inner"]
    begins = np.arange(10_000) * 1_000
    spans = np.zeros(10_001, SPAN_DTYPE)
    spans["path"], spans["depth"] = 1, 1
    spans["host_begin_ns"][:-1] = begins
    spans["host_end_ns"][:-1] = begins + np.arange(10_000) % 1_000
    spans[-1] = (0, 0, 0, 0, 0, -1, -1, 0, 10_000_000, -1, -1, -1, 1)
    for column in ("device", "stream", "device_begin_ns", "device_end_ns", "blocked_ns"):
        spans[column] = -1
    spans["flags"] = 1
    whole = training([10_000_000])
    run = run_of(spans, names, steps=whole.steps, duration_ns=20_000_000)
    run.steps.array["begin_ns"], run.steps.array["end_ns"] = 0, 10_000_000
    window = made([run], 1).windows[0]

    (track,) = window.plain["tracks"]
    assert len(track["begin"]) + window.plain["left_out"] == len(spans) + 1  # and the step
    assert len(track["begin"]) <= 4_000
    assert min(track["duration"]) > window.plain["shortest"]
    assert (
        window.plain["shortest"] == np.sort(np.arange(10_000) % 1_000)[window.plain["left_out"] - 1]
    )


def test_overlapping_bars_of_a_thread_have_rows_of_their_own() -> None:
    spans = [
        (0, 0, -1, 0, 0, -1, -1, 0, 100, -1, -1, -1, 0),
        (1, 1, -1, 0, 0, -1, -1, 50, 150, -1, -1, -1, 0),
    ]
    (window,) = made([run_of(spans, duration_ns=200)]).windows

    assert window.plain["tracks"][0]["row"] == [0, 1]


def test_modules_lie_in_their_phases() -> None:
    run = training()
    first = run.steps.array[0]
    begin = int(first["begin_ns"])
    module = (begin, begin + 4 * MS, 0, 1, 0, 0, 0, 0, -1, -1, -1)
    run = training(module_names=["layers.0"], module_spans=np.array([module], MODULE_SPAN_DTYPE))
    window = made([run]).windows[0]

    rows = {path: row for path, *_, row in bars(window, window.plain["tracks"][0])}
    assert rows["layers.0 (backward)"] == rows["forward"] + 1
    kinds = {path: kind for _, path, kind, *_ in window.plain["labels"]}
    assert kinds["layers.0 (backward)"] == RangeKind.MODULE


def test_a_run_without_steps_shows_its_newest_phases() -> None:
    spans = [(0, 0, -1, 0, 0, -1, -1, 100, 300, -1, -1, -1, 0)]
    run = run_of(spans, duration_ns=1_000)
    run.open_phases = (OpenPhase(run.paths[1], 0, 400, -1, 0),)
    found = made([run])

    (window,) = found.windows
    assert (window.why, window.step, found.missing) == ("newest phases", None, "")
    assert bars(window, window.plain["tracks"][0]) == [
        ("forward", 100, 200, 0),
        ("forward/attention (open)", 400, 600, 0),
    ]


def test_an_empty_run_says_why_there_is_nothing() -> None:
    found = made([run_of([])])

    assert (found.windows, found.missing) == ((), "no phase ended")


def test_steps_without_spans_are_not_shown_as_if_they_were_empty() -> None:
    whole = training()
    run = training(
        spans=whole.spans[:0],
        span_self_ns=whole.span_self_ns[:0],
        dropped={"span_history": len(whole.spans)},
        phases_recorded=len(whole.spans),
    )
    found = made([run])

    assert (found.windows, found.missing) == (
        (),
        "no step has all of its spans in the history",
    )


@pytest.mark.parametrize("late_ns", [0, 2 * MS])
def test_ranks_share_one_axis(late_ns: int) -> None:
    alone = training()
    parts = {
        name: getattr(alone, name)
        for name in ("names", "path_parents", "path_names", "steps", "duration_ns")
    }
    runs = [rank(i, i * late_ns, alone.spans, **parts) for i in range(2)]
    found = made(runs)
    window = found.windows[0]

    assert found.is_aligned
    assert [(track["run"], track["device"]) for track in window.plain["tracks"]] == [
        (0, False),
        (0, True),
        (1, False),
        (1, True),
    ]
    assert window.plain["step_times"] == [(0, STEP_NS), (late_ns, late_ns + STEP_NS)]
    forward = [
        track["begin"][track["duration"].index(4 * MS)]
        for track in window.plain["tracks"]
        if not track["device"]
    ]
    assert forward[1] in (forward[0] + late_ns, forward[0] + late_ns - STEP_NS)


def test_ranks_without_start_times_begin_each_with_its_own_step() -> None:
    runs = [training(environment={}), training([STEP_NS // 2] * 20, environment={})]
    found = made(runs)

    assert not found.is_aligned
    assert all(
        begin == 0
        for begin, _ in (times for times in found.windows[0].plain["step_times"] if times)
    )


def test_no_two_phases_of_a_run_share_a_colour_while_there_are_any() -> None:
    names = ["data", "h2d", "forward", "loss", "backward", "zero_grad", "optimizer", "metrics"]
    assert len(set(map(color_of, names))) < len(names)
    script = Script()
    for name in names:
        script.leaf(name, MS)
    colors = colors_of(script.run())
    assert len(set(colors.values())) == len(names)
    assert colors["backward"] == color_of("backward")
    for number in range(10):
        script.leaf(f"phase {number}", MS)
    assert {*colors_of(script.run()).values()} == {*COLORS}
