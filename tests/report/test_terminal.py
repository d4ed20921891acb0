# SPDX-License-Identifier: Apache-2.0
"""The report, on runs whose every nanosecond is known."""

import io
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.step_times import phases_ns
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.record import OpenPhase, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, SpanFlag
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.core.steps import Step, Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, SyncTotals
from pyinstrument_gpu.parts.words import duration
from tests.helpers.made_script import Script

US = 1_000
MS = 1_000_000

DEVICE_DROPS = [
    f"device_{cause}"
    for cause in (
        *("no_context", "preparing", "ring_full", "capturing", "side_stream", "budget"),
        *("failed", "unfinished", "history"),
    )
]


def training(steps: int = 4) -> Script:
    script = Script()
    script.leaf("setup", 5 * MS)
    for i in range(steps):
        with script.step(samples=64):
            script.leaf("data", 200 * US)
            with script.phase("forward", 300 * US):
                script.leaf("attention", 3 * MS)
                if i == 0:
                    script.path("backward")  # of the paths, "mlp" appears after it
                script.leaf("mlp", (2 + i) * MS)
            begin_ns = script.now_ns
            script.leaf("backward", 8 * MS)
            script.span(("decode",), begin_ns, begin_ns + 700 * US, thread=1)
            script.leaf("optimizer", 900 * US)
            script.work(100 * US)
    script.leaf("checkpoint", 40 * MS)
    return script


def text(run: Run, width: int = 80, **options: Any) -> str:
    return run.report(verbose=True, width=width, color=False, **options)


def line_of(report: str, name: str) -> list[str]:
    (line,) = [line for line in report.splitlines() if line.strip().startswith(name + "  ")]
    return line.split()


def test_report_of_a_training_run() -> None:
    assert (
        text(training().run())
        == """\
train.py --epochs 3
host trainbox, rank 0 of 8, torch 2.13.0, no GPU, device timing off
4 steps in 109 ms, complete
A step takes 16.0 ms, of which the host spends 50% in backward; 4 steps are too
few to say what a change could save.

Where the step goes: ms per step
phase           calls    mean     p50     p95   self  device  blocked  % step
--------------  -----  ------  ------  ------  -----  ------  -------  ------
data                4   0.200   0.200   0.200  0.200       -        -     1.2
forward             4   6.800   6.300   8.300  0.300       -        -    42.5
  attention         4   3.000   3.000   3.000  3.000       -        -    18.8
  mlp               4   3.500   3.000   5.000  3.500       -        -    21.9
backward            4   8.000   8.000   8.000  8.000       -        -    50.0
optimizer           4   0.900   0.900   0.900  0.900       -        -     5.6
--------------  -----  ------  ------  ------  -----  ------  -------  ------
sum of phases          15.900                                            99.4
outside phases          0.100                                             0.6
step                4  16.000  15.500  17.500                           100.0

Total step time 64.0 ms, sum of phases 63.6 ms, outside phases 400 us (0.6%)
62.5 steps/s, 4,000 samples/s of step time

Other threads while a step was open (not part of its time): per call
phase   calls  total us  mean us     p50     p95    self
------  -----  --------  -------  ------  ------  ------
decode      4   2800.00   700.00  700.00  700.00  700.00

Outside steps: 45.0 ms of 109 ms (41%), 5.00 ms of it before the first step
phase       calls  total ms  mean ms     p50     p95    self
----------  -----  --------  -------  ------  ------  ------
setup           1     5.000    5.000   5.000   5.000   5.000
checkpoint      1    40.000   40.000  40.000  40.000  40.000

Recorder: 31.4 ns per phase, 210 ns per step, 6.0 phases per step, together
0.0025% of the step, its own thread 0.2% of one core
Nothing dropped"""
    )


def test_report_of_one_step() -> None:
    script = training()
    with script.step():
        script.leaf("data", 250 * US)
        script.leaf("data", 250 * US)
        script.work(500 * US)
    assert (
        text(script.run(), step=1)
        == """\
Step 1, 64 samples
data            0.000200 s
forward         0.006300 s
  attention     0.003000 s
  mlp           0.003000 s
backward        0.008000 s
optimizer       0.000900 s
--------------  ----------
sum             0.015400 s
total           0.015500 s
outside phases  0.000100 s  (0.6%)

Other threads during this step
decode  0.000700 s"""
    )
    assert (
        text(script.run(), step=4)
        == """\
Step 4
data            0.000500 s  (2 calls)
--------------  ----------
sum             0.000500 s
total           0.001000 s
outside phases  0.000500 s  (50.0%)"""
    )


def test_wide_report_has_bars_and_the_same_numbers() -> None:
    run = training().run()
    narrow, wide = text(run, width=80), text(run, width=120)
    assert line_of(wide, "backward") == [*line_of(narrow, "backward"), "#" * 10]
    assert line_of(wide, "sum of phases") == [*line_of(narrow, "sum of phases"), "#" * 20]


def test_phase_of_some_steps_is_spread_over_all_of_them() -> None:
    script = Script()
    for i in range(20):
        with script.step():
            script.work(MS)
            if i >= 18:
                script.leaf("eval", 10 * MS)
    # Two of twenty: the median step has none, the 19th of the sorted twenty has one.
    assert line_of(text(script.run()), "eval")[1:5] == ["2", "1.000", "0.000", "10.000"]


def test_phase_around_the_steps_is_a_heading_without_numbers() -> None:
    script = Script()
    with script.phase("epoch"):
        script.leaf("shuffle", 2 * MS)
        for _ in range(2):
            with script.step():
                script.leaf("forward", 3 * MS)
                script.work(MS)
    report = text(script.run())
    steps, outside = report.split("Outside steps")
    assert "\nepoch\n  forward " in steps
    assert line_of(steps, "sum of phases")[3:] == ["3.000", "75.0"]
    assert line_of(steps, "outside phases")[2:] == ["1.000", "25.0"]
    # Its self time would be what the steps have outside phases.
    assert " ".join(line_of(outside, "epoch")) == "epoch 1 10.000 10.000 10.000 10.000 - *"
    assert " ".join(line_of(outside, "shuffle")) == "shuffle 1 2.000 2.000 2.000 2.000 2.000"
    assert "\n* was open during steps, so its times include theirs\n" in outside
    assert "since" not in text(script.run(), step=1)


def test_outside_steps_marks_only_what_was_open_during_one() -> None:
    script = Script()
    script.leaf("before", MS)
    for _ in range(2):
        with script.step():
            script.work(10 * MS)
        script.leaf("between", MS)
    script.span(("into the first",), 0, 1 * MS + 1)
    script.span(("from the second",), 22 * MS - 1, 23 * MS, thread=1)  # begun late, as if outside
    script.span(("loader",), 0, 20 * MS, thread=1)
    marked = re.findall(r"^(.*?)  .*\*$", text(script.run()), re.MULTILINE)
    assert marked == ["into the first", "from the second", "loader"]
    assert "*" not in text(training().run())


def test_without_history_a_phase_longer_than_all_time_outside_was_open_during_steps() -> None:
    script = Script()
    script.leaf("setup", MS)
    with script.phase("epoch"), script.step():
        script.work(10 * MS)
    run = script.run(spans=None, statistics=script.run().statistics, dropped={"disk_error": 2})
    outside = text(run).split("Outside steps")[1]
    assert line_of(outside, "epoch")[-1] == "*"
    assert line_of(outside, "setup")[-2:] == ["1.000", "1.000"]


def test_step_that_had_not_ended_counts_as_open_to_the_last() -> None:
    script = Script()
    with script.step():
        script.work(MS)
    script.leaf("between", MS)
    script.span(("into the last",), MS, 4 * MS)
    script.steps.append((1, 3 * MS, -1, np.nan, 1, False, 0))
    script.now_ns = 5 * MS
    outside = text(script.run(open_step=Step(1, 3 * MS, -1, None, 1, False, 0)))
    assert line_of(outside, "into the last")[-1] == "*"
    assert line_of(outside, "between")[-1] != "*"


def test_phase_that_outlasts_its_step_is_cut_at_its_end() -> None:
    script = Script()
    for i in range(2):
        with script.step():
            script.work(2 * MS)
            if i == 0:
                script.span(("async",), script.now_ns - MS, script.now_ns + 10 * MS)
        script.work(20 * MS)
    report = text(script.run())
    assert line_of(report, "sum of phases")[3:] == ["0.500", "25.0"]
    assert line_of(report, "outside phases")[2:] == ["1.500", "75.0"]
    assert line_of(report, "async")[-1] == "-"  # 11 ms in 4 are no share
    assert "Spans that outlasted their step: 1. Rows count them in full" in report
    assert (
        text(script.run(), step=0)
        == """\
Step 0
async           0.001000 s  (outlasts the step)
--------------  ----------
sum             0.001000 s
total           0.002000 s
outside phases  0.001000 s  (50.0%)"""
    )


def test_without_history_the_sum_is_said_to_be_of_self_times() -> None:
    script = Script()
    for duration_ns in (2 * MS, 8 * MS):
        with script.step():
            script.work(duration_ns)
            script.span(("async",), script.now_ns - MS, script.now_ns + MS)
        script.work(5 * MS)
    statistics = script.run().statistics
    report = text(script.run(spans=None, statistics=statistics, dropped={"disk_error": 2}), 120)
    assert line_of(report, "outside phases")[2:4] == ["3.000", "60.0"]  # in truth 4.000
    warning = "\nSome history is missing, so the sum is made of self times: a phase that outlasts"
    assert warning in report
    assert "exceeds" not in report

    script.step_index = 1
    script.span(("async",), 7 * MS, 17 * MS)
    statistics = script.run().statistics
    report = text(script.run(spans=None, statistics=statistics, dropped={"disk_error": 3}), 120)
    assert line_of(report, "sum of phases")[3:] == ["7.000", "-"]
    assert line_of(report, "outside phases")[2:] == ["-", "-"]
    assert "sum of phases 14.0 ms, outside phases -\n" in report
    assert warning in report
    assert "\nTime outside phases is unknown, because the sum exceeds the step time\n" in report
    assert warning not in text(script.run(), 120)


def prefetching() -> Script:
    """Three steps of 5 ms with 1 ms between them, and a phase from in the first to in the last."""
    script = Script()
    for _ in range(3):
        with script.step():
            script.work(2 * MS)
            script.leaf("forward", 2 * MS)
            script.work(MS)
        script.work(MS)
    script.step_index = 0
    script.span(("prefetch",), MS, 15 * MS)
    return script


def test_one_step_has_what_earlier_steps_left_open() -> None:
    run = prefetching().run()
    assert (
        text(run, step=1)
        == """\
Step 1
forward         0.002000 s
prefetch        0.005000 s  (since step 0, outlasts the step)
--------------  ----------
sum             0.005000 s
total           0.005000 s
outside phases  0.000000 s  (0.0%)"""
    )
    assert "prefetch        0.003000 s  (since step 0)\n" in text(run, step=2)
    sums = [line_of(text(run, step=i), "sum")[1] for i in range(3)]
    assert sums == ["0.004000", "0.005000", "0.004000"]
    assert line_of(text(run), "sum of phases")[3:] == ["4.333", "86.7"]


def test_open_phases_of_another_thread_cover_no_step() -> None:
    script = prefetching()
    script.steps[1] = (*script.steps[1][:-1], 1)  # opened by the second thread
    run = script.run()
    assert phases_ns(run, run.steps.array).tolist() == [4 * MS, 0, 4 * MS]
    assert "prefetch" not in text(run, step=1)


def test_quantiles_speak_of_the_steps_whose_spans_are_kept() -> None:
    script = training(4)
    run = script.run()
    first_of_step_2 = next(i for i, span in enumerate(script.spans) if span[2] == 2)
    kept = script.run(
        spans=run.spans[first_of_step_2 - 1 :],
        span_self_ns=run.span_self_ns[first_of_step_2 - 1 :],
        statistics=run.statistics,
        dropped={"span_history": first_of_step_2 - 1},
    )
    report = text(kept)
    assert "p50 and p95 cover the 2 of 4 steps whose spans are still in the history" in report
    assert " ".join(line_of(report, "mlp")) == "mlp 4 3.500 4.000 5.000 3.500 - - 21.9"
    assert line_of(report, "sum of phases")[3:] == ["15.900", "99.4"]
    assert "spans removed from the history to make room" in report
    with pytest.raises(KeyError, match="spans are no longer kept; those of steps 2 to 3 are"):
        text(kept, step=1)

    report = text(script.run(spans=None, statistics=run.statistics, dropped={"disk_error": 29}))
    assert " ".join(line_of(report, "mlp")) == "mlp 4 3.500 - - 3.500 - - 21.9"
    assert line_of(report, "step")[1:] == ["4", "16.000", "-", "-", "100.0"]
    assert "No p50 and p95: no step has all of its spans in the history" in report
    assert "too low" not in report


def test_lost_span_may_be_of_the_step_shown() -> None:
    run = training().run()
    lossy = training().run(phases_recorded=len(run.spans) + 1, dropped={"ring_full": 1})
    assert "! 1 span of the run lost, possibly from this step" in text(lossy, step=3)
    assert "lost" not in text(run, step=3)
    assert "p50 and p95 may be too low: 1 span of these steps may be missing" in text(lossy)
    assert "too low" not in text(run)


def test_unknown_step_names_those_there_are() -> None:
    with pytest.raises(KeyError, match="no step 7: the run holds steps 0 to 3"):
        text(training().run(), step=7)


def test_run_without_steps_is_reported_per_call() -> None:
    script = Script()
    for duration_ns in (MS, 3 * MS):
        with script.phase("work"):
            script.leaf("inner", duration_ns)
    report = text(script.run())
    assert "No step ended. Times per call, over the whole run" in report
    assert line_of(report, "inner")[:4] == ["inner", "2", "4.000", "2.000"]
    assert "Outside" not in report
    assert "per step" not in report


def test_startup_lasts_until_the_first_step_that_is_known() -> None:
    script = Script()
    script.work(7 * MS)
    for _ in range(2):
        with script.step():
            script.leaf("forward", MS)
    run = script.run()
    assert "of 9.00 ms (78%), 7.00 ms of it before the first step" in text(run)
    run.steps = Steps(run.steps.array[1:])
    assert "before the first step" not in text(run)


def test_report_says_that_no_optimizer_was_seen() -> None:
    note = "! No optimizer was seen, so each step ends with a backward pass."
    assert note in text(training().run(environment={"optimizer_seen": False}))
    assert note not in text(training().run(environment={"optimizer_seen": None}))


def test_empty_run_says_why() -> None:
    report = text(Run.empty("Recording is off: PYINSTRUMENT_GPU=0."))
    assert "No phase ended." in report
    assert "! Recording is off: PYINSTRUMENT_GPU=0." in report


def test_step_without_phases_and_without_duration() -> None:
    script = Script()
    with script.step():
        pass
    report = text(script.run())
    assert len(re.findall(r"^-----", report, re.MULTILINE)) == 1
    assert line_of(report, "step") == ["step", "1", "0.00", "0.00", "0.00", "-"]


def test_killed_run_names_what_was_open() -> None:
    script = training(2)
    begin_ns = script.now_ns
    script.step_index = 2
    script.leaf("data", MS)
    script.steps.append((2, begin_ns, -1, 64, 1, False, 0))
    script.work(MS)
    run = script.run(
        complete=False,
        notes=["The process ended without stopping the recording."],
        open_phases=[OpenPhase("forward", 0, begin_ns + MS, 2, 0)],
        open_step=Step(2, begin_ns, -1, 64.0, 1, False, 0),
    )
    report = text(run, width=200)
    assert "2 steps in 77.0 ms, incomplete" in report
    assert "! The process ended without stopping the recording." in report
    assert "! Open at the end: forward (MainThread, since 76.0 ms)." in report
    assert "! Step 2 had not ended: its phases are counted, its time is not." in report
    assert "Outside steps: 45.0 ms of 77.0 ms" in report
    assert line_of(report, "sum of phases")[3:5] == ["14.900", "99.3"]
    assert (
        text(run, step=2)
        == """\
Step 2, 64 samples, still open at the end
data            0.001000 s
--------------  ----------
sum             0.001000 s
total so far    0.002000 s
outside phases  0.001000 s  (50.0%)"""
    )


def test_steps_left_early_are_counted() -> None:
    script = Script()
    for complete in (True, False):
        with script.step(complete=complete):
            script.work(MS)
    assert "! Cut short: 1 of 2 steps; times per step leave them out." in text(script.run())
    assert text(script.run(), step=1).startswith("Step 1, cut short\n")


def test_device_and_blocked_times_stand_where_they_are_known() -> None:
    script = training(4)
    run = script.run()
    backward = script.path("backward")
    device = Statistic.of(np.array([6 * MS, 8 * MS]))  # of two calls in four
    measured = PhaseStatistics(
        host=run.statistics[backward, Scope.STEP].host,
        self_host=run.statistics[backward, Scope.STEP].self_host,
        device=device,
        blocked=Statistic.of(np.zeros(4, np.int64)),
    )
    report = text(script.run(statistics={**run.statistics, (backward, Scope.STEP): measured}))
    steps, device_part = report.split("On the device")
    assert line_of(steps, "backward")[6:8] == ["7.000", "0.000"]
    assert line_of(steps, "forward")[6:8] == ["-", "-"]
    assert line_of(device_part, "backward") == [
        *("backward", "2", "8.000", "7.000", "8.000", "-", "-")
    ]
    assert "device timing off" not in report
    assert "blocked is known of" not in report


def test_blocked_times_of_some_calls_and_watches_of_some_steps_say_so() -> None:
    script = training(4)
    run = script.run()
    forward = script.path("forward")
    host = run.statistics[forward, Scope.STEP].host
    known = PhaseStatistics(host=host, blocked=Statistic.of(np.full(3, MS)))
    site = SyncSite("train.py", 7, "train", SyncKind.ITEM, False, SyncTotals(1, 1, MS, 4))
    event = (int(run.steps.array["begin_ns"][1]), MS, 4, 0, -1, 1, 0)
    second_half = ((int(run.steps.array["begin_ns"][2]), script.now_ns),)
    syncs = Syncs((site,), np.array([event], SYNC_DTYPE), second_half)
    report = text(
        script.run(statistics={**run.statistics, (forward, Scope.STEP): known}, syncs=syncs)
    )

    assert "blocked is known of 3 of 4 calls; their mean stands for all" in report
    assert "The watch was on in 2 of 4 steps; numbers per step are means of all steps" in report


def on_device(
    script: Script, times: Callable[[str, int, int], tuple[int, int] | None], **parts: Any
) -> Run:
    """The run with the device times that a function gives for the name, begin and end of spans of
    the steps' own thread."""
    spans = np.array(script.spans, SPAN_DTYPE)
    names = list(script.names)
    spans["flags"][(spans["step"] >= 0) & (spans["thread"] == 0)] |= np.uint32(SpanFlag.DEVICE)
    for i in np.flatnonzero(spans["flags"] & SpanFlag.DEVICE).tolist():
        begin_ns, end_ns = int(spans["host_begin_ns"][i]), int(spans["host_end_ns"][i])
        device_ns = times(names[spans["phase"][i]], begin_ns, end_ns)
        if device_ns is not None:
            spans["device"][i] = spans["stream"][i] = 0
            spans["device_begin_ns"][i], spans["device_end_ns"][i] = device_ns
    points_ns = np.array([0, 10**9], np.int64)
    run_ns = np.array([0, 10**9 + 12_500], np.int64)
    clock = DeviceClock(0, points_ns, run_ns, np.array([1_200, 3_000]))
    made: dict[str, Any] = {
        "spans": spans,
        "streams": named_streams([(0, 0)]),
        "device_clocks": [clock],
        "device_timing": DeviceTimingSummary(every=1, records=56, record_ns=56 * 1_400),
    }
    return script.run(**(made | parts))


def gpu_work(name: str, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
    """A loop whose forward pass is launch-bound and whose backward pass device-bound."""
    if name == "backward":
        return begin_ns + MS, end_ns + 20 * MS
    if name == "optimizer":
        return end_ns + 19 * MS, end_ns + 20 * MS
    return None if name == "data" else (begin_ns + 20 * US, end_ns + 15 * US)


def device_part(report: str) -> str:
    return report.split("On the device: ")[1].split("\n\n")[0]


def test_report_with_device_times() -> None:
    report = text(on_device(training(8), gpu_work))
    assert (
        device_part(report)
        == """\
ms per call, device time next to host time
phase        timed   host  device     p95   queue  bottleneck
-----------  -----  -----  ------  ------  ------  ----------
forward          8  8.800   8.795  12.295   0.020     launch?
  attention      8  3.000   2.995   2.995   0.020     launch?
  mlp            8  5.500   5.495   8.995   0.020     launch?
backward         8  8.000  27.000  27.000   1.000      device
optimizer        8  0.900   1.000   1.000  19.900      device
queue: how long after the host the device began a call (median)
launch: the device waited for the host to enqueue work
device: it still had a backlog when the host had enqueued everything
launch?: launch or blocked; waits for the device were not measured
Clocks, compared to the host's: GPU 0 within 3.00 us, drift 12.5 ppm"""
    )
    assert "device timing off" not in report
    assert line_of(report.split("On the device")[0], "backward")[6] == "27.000"
    assert (
        "Device timing, on the host: 1.40 us per event, 7.0 events per step with those\n"
        "outside of steps, as much as 0.054% of the steps' time\n" in report
    )


def test_wide_report_has_more_columns_on_the_device() -> None:
    report = text(on_device(training(8), gpu_work), width=100)
    header, _, forward = device_part(report).splitlines()[1:4]
    assert header.split() == [
        *("phase", "timed", "host", "device", "p50", "p95", "queue", "queue", "p95", "bottleneck")
    ]
    assert forward.split() == [
        *("forward", "8", "8.800", "8.795", "8.323", "12.295", "0.020", "0.020", "launch?")
    ]
    assert max(map(len, device_part(text(on_device(training(8), gpu_work), 80)).splitlines())) <= 80


def test_times_far_from_where_clocks_were_compared_are_said_to_be_less_certain() -> None:
    run = on_device(training(8), gpu_work)
    (clock,) = run.device_clocks
    points_ns = np.array([0, 10**6], np.int64)
    early = DeviceClock(0, points_ns, points_ns, clock.uncertainties_ns)
    run.device_clocks = (early,)
    last_ns = int(run.spans["device_end_ns"].max())
    expected_ns = 3_000 + 4_200 * (last_ns - 10**6) // 10**6
    wanted = f"GPU 0 within 3.00 us, drift 0.0 ppm; some times only within {duration(expected_ns)}"
    assert wanted in text(run, width=120)


def test_bottleneck_is_certain_where_blocked_time_is_known() -> None:
    for blocked_ns, bottleneck in ((0, "launch"), (3 * MS, "blocked")):
        run = on_device(training(8), gpu_work)
        run.spans["blocked_ns"] = blocked_ns
        part = device_part(text(run))
        assert line_of(part, "forward")[-1] == bottleneck
        assert f"\n{bottleneck}: " in part
        assert "launch?" not in part


def test_device_times_of_every_other_step_are_not_read_as_all() -> None:
    script = training(8)
    begins_ns = [step[1] for step in script.steps]

    def every_other(name: str, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
        step = int(np.searchsorted(begins_ns, begin_ns, side="right")) - 1
        return None if step % 2 else gpu_work(name, begin_ns, end_ns)

    run = on_device(script, every_other, device_timing=DeviceTimingSummary(2, 28, 28_000))
    report = text(run, width=120)
    assert "The device was timed in one of every 2 steps, the host in all of them\n" in report
    assert (
        "Device times cover 20 of these phases' 40 calls, host times all of them. The table above "
        "uses their mean for all calls\n" in report
    )
    assert line_of(device_part(report), "backward")[1] == "4"
    assert line_of(device_part(report), "backward")[-1] == "-"  # too few spans for a verdict
    assert text(run, step=0).splitlines()[1].split() == ["host", "device"]


def test_bottlenecks_say_when_the_history_has_no_more() -> None:
    run = on_device(training(8), gpu_work)
    kept = run.spans["step"] != 0
    rest = {"spans": run.spans[kept], "span_device_ns": run.span_device_ns[kept]}
    rest |= {"span_self_ns": run.span_self_ns[kept], "statistics": run.statistics}
    report = text(training(8).run(streams=run.streams, **rest), width=120)
    assert "queue and bottleneck cover 35 of 40 timed calls: the others are not " in report


def test_device_timing_that_gave_no_time_is_not_called_off() -> None:
    report = text(training().run(device_timing=DeviceTimingSummary(1, 0, 0)))
    assert "device timing off" not in report
    assert "On the device" not in report
    assert "Device timing, on the host" not in report


def test_without_steps_device_times_are_of_the_whole_run() -> None:
    script = Script()
    for _ in range(6):
        script.leaf("infer", MS)
    spans = np.array(script.spans, SPAN_DTYPE)
    spans["device"] = spans["stream"] = 0
    spans["device_begin_ns"] = spans["host_end_ns"]
    spans["device_end_ns"] = spans["host_end_ns"] + 3 * MS
    report = text(script.run(spans=spans, streams=named_streams([(0, 7)])))
    assert line_of(device_part(report), "infer") == [
        *("infer", "6", "1.000", "3.000", "3.000", "1.000", "device")
    ]


def test_device_work_that_had_not_finished_is_named() -> None:
    script = training(2)
    pending = {"backward": 2, "forward/mlp": 1}
    run = script.run(pending_device_work=pending, complete=False)
    wanted = "! Device work not finished at the end: backward (2 spans), forward/mlp (1 span)."
    assert wanted in text(run, width=120)

    run = script.run()
    backward = run.spans["path"] == script.path("backward")
    run.spans["flags"][backward] |= np.uint32(SpanFlag.DEVICE_UNFINISHED)
    assert "! Device work not finished at the end: backward (2 spans)." in text(run, width=120)
    assert "not finished" not in text(script.run())


def test_one_step_with_device_times() -> None:
    script = training(3)
    with script.step():
        script.leaf("backward", MS)
        script.leaf("backward", MS)
        script.leaf("optimizer", MS)
    last_ns = script.steps[3][1]

    def times(name: str, begin_ns: int, end_ns: int) -> tuple[int, int] | None:
        if begin_ns < last_ns:
            return gpu_work(name, begin_ns, end_ns)
        return (begin_ns, begin_ns + 2 * MS) if begin_ns == last_ns else None

    run = on_device(script, times)
    run.spans["flags"][-1] |= SpanFlag.DEVICE_UNFINISHED
    assert (
        text(run, step=3)
        == """\
Step 3
                      host      device
--------------  ----------  ----------
backward        0.002000 s  0.002000 s  (2 calls, device: 1 of them)
optimizer       0.001000 s           -  (device work not finished)
--------------  ----------  ----------
sum             0.003000 s
total           0.003000 s
outside phases  0.000000 s              (0.0%)"""
    )
    run.spans["flags"] = 1
    run.spans["device_begin_ns"] = -1
    run.span_device_ns[:] = -1
    assert text(run, step=1).endswith("The device was not timed in this step")


@pytest.mark.parametrize("cause", DEVICE_DROPS)
def test_device_drops_are_said_in_words(cause: str) -> None:
    report = text(training().run(dropped={cause: 2}), width=140)
    assert re.search(rf"\nDropped \({cause}\): 2 (spans|device times) \w+ ", report + "\n")


def test_gpus_are_counted_by_name() -> None:
    environment = {"gpus": ["NVIDIA H200", "NVIDIA H200", "NVIDIA L4"]}
    assert "2 x NVIDIA H200, 1 x NVIDIA L4" in text(training().run(environment=environment))
    assert "no GPU" in text(training().run(environment={"gpus": []}))
    assert "no GPU" not in text(training().run(environment={}))


def test_drops_and_cost() -> None:
    script = training()
    report = text(
        script.run(dropped={"nested_steps": 3, "ring_full": 0, "of_the_future": 2}, environment={}),
        width=120,
    )
    assert "Dropped (nested_steps): 3 steps inside another step, recorded as" in report
    assert "ring_full" not in report
    assert "Dropped (of_the_future): 2\n" in report + "\n"
    assert "Nothing dropped" not in report
    assert "Recorder: cost per phase not measured, 6.0 phases per step, its own" in report
    report = text(script.run(environment={"overhead": {"phase_ns": 40.0}}), width=120)
    assert "40.0 ns per phase, 6.0 phases per step, phases alone 0.0015% of the step" in report
    report = text(script.run(environment={"overhead": {"phase_ns": 20.0, "step_ns": 30.0}}), 120)
    assert "together <0.001% of the step" in report
    report = text(script.run(environment={"overhead": {"phase_ns": 4e5, "step_ns": 1e4}}), 120)
    assert "400000.0 ns per phase, 10,000 ns per step, 6.0 phases per step, together 15%" in report


def test_one_of_a_thing_is_no_plural() -> None:
    script = Script()
    with script.step(samples=8):
        script.work(MS)
    report = text(script.run(dropped={"depth": 1}))
    assert "\n1 step in 1.00 ms, complete\n" in report
    assert "\nDropped (depth): 1 span not recorded: nested too deeply" in report


def test_samples_known_of_some_steps_only() -> None:
    script = Script()
    for samples in (8, np.nan):
        with script.step(samples=samples):
            script.work(MS)
    line = "1,000 steps/s, 8,000 samples/s of step time (samples of 1 of 2 steps known)"
    assert f"\n{line}\n" in text(script.run())


def test_tables_end_after_200_paths() -> None:
    script = Script()
    with script.step():
        for i in range(201):
            script.leaf(f"item {i}", MS)
            script.span((f"load {i}",), script.now_ns, script.now_ns, thread=1)
    for i in range(300):
        script.leaf(f"save {i}", MS)
    run = script.run()
    report = text(run)
    for name, more in ("item", "1 more path"), ("load", "1 more path"), ("save", "100 more paths"):
        shown = re.findall(rf"^{name} (\d+) ", report, re.MULTILINE)
        assert list(map(int, shown)) == list(range(200))
        assert f"\n... and {more} (export --summary has all)\n" in report
    assert line_of(report, "sum of phases")[3:] == ["201.000", "100.0"]
    one = text(run, step=0)
    assert len(re.findall("^item", one, re.MULTILINE)) == 200
    assert len(re.findall("^load", one, re.MULTILINE)) == 200
    assert one.count("... and 1 more path (export --summary has all)") == 2


HOSTILE = {  # name: how it is shown
    "[red]": "[red]",
    "[/]": "[/]",
    ":smile:": ":smile:",
    "a/b%": "a/b%",
    "über 🚀": "über 🚀",
    "a\nb": r"a\nb",
    "\x1b[31mred": r"\x1b[31mred",
    "\ud800": r"\ud800",
    "\u202eevil": r"\u202eevil",
}


def test_names_are_shown_literally_and_cannot_break_the_layout() -> None:
    script = Script()
    with script.step():
        for name in HOSTILE:
            script.leaf(name, MS)
    report = text(script.run())
    table = report.split("Where")[1].split("Total")[0].splitlines()[3:]
    shown = [re.split(r"  +", line)[0] for line in table[: len(HOSTILE)]]
    assert shown == list(HOSTILE.values())
    assert len({cell_len(line) for line in table[: len(HOSTILE)]}) == 1
    assert "\x1b" not in report


def test_long_names_wrap_and_lose_nothing() -> None:
    script = Script()
    names = ["x" * 127 + c + "y" * 128 for c in "ab"]
    with script.step(), script.phase("outer"):
        for name in names:
            script.leaf(name, 1234 * MS)
    report = text(script.run())
    assert max(map(cell_len, report.splitlines())) <= 80
    table = report.split("outer", 1)[1].split("sum of phases")[0]
    folded = "".join(re.findall(r"^  ([a-z]+)", table, re.MULTILINE))
    assert folded == "".join(names)
    assert table.count(" 1234.0") == 2 * 4


@pytest.mark.parametrize("width", [20, 40, 60])
def test_numbers_are_never_cut(width: int) -> None:
    run = training().run()
    assert line_of(text(run, width), "backward") == line_of(text(run, 80), "backward")


def test_deep_tree_stays_within_its_column() -> None:
    script = Script()
    with script.step(), contextmanager(_nested)(script, 200):
        script.work(MS)
    report = text(script.run())
    assert max(map(cell_len, report.splitlines())) <= 80
    assert len(re.findall(r"level +1 ", report)) == 200


def _nested(script: Script, depth: int) -> Iterator[None]:
    if depth == 0:
        yield
        return
    with script.phase("level"):
        yield from _nested(script, depth - 1)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_only_for_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    run = training().run()
    for variable in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", _Terminal())
    assert "\x1b[1m" in run.report(verbose=True, width=80)
    monkeypatch.setenv("NO_COLOR", "1")
    assert run.report(verbose=True, width=80) == text(run)
    assert "\x1b[1m" in run.report(verbose=True, width=80, color=True)
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert run.report(verbose=True, width=80) == text(run)


def test_colours_change_no_character() -> None:
    run = training().run()
    plain = re.sub(r"\x1b\[[0-9;]*m", "", run.report(verbose=True, width=80, color=True))
    assert [line.rstrip() for line in plain.splitlines()] == text(run).splitlines()


@st.composite
def made_steps(draw: st.DrawFn) -> tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]]:
    """Steps as (begin, end) and spans as (path, step, begin, end), which may outlast their step."""
    times = st.integers(0, 12)
    steps, spans, now = [], [], 0
    for index in range(draw(st.integers(1, 5))):
        begin = now + draw(times)
        now = begin + draw(times)
        steps.append((begin, now))
        for _ in range(draw(st.integers(0, 5))):
            start = draw(st.integers(begin, now))
            spans.append((draw(st.integers(0, 2)), index, start, start + draw(times)))
    return steps, spans


@settings(max_examples=50)
@given(made_steps())
def test_numbers_equal_a_plain_count(
    made: tuple[list[tuple[int, int]], list[tuple[int, int, int, int]]],
) -> None:
    steps, spans = made
    script = Script()
    for path in range(3):
        script.path(str(path))
    for begin, end in steps:
        script.now_ns = begin
        with script.step():
            script.now_ns = end
    for path, script.step_index, begin, end in spans:
        script.span((str(path),), begin, end)
    run = script.run()

    inside = {t for _, _, begin, end in spans for t in range(begin, end)}
    per_step = [sum(t in inside for t in range(begin, end)) for begin, end in steps]
    assert phases_ns(run, run.steps.array).tolist() == per_step
    crossing = sum(end > steps[step][1] for _, step, _, end in spans)
    found = analysis.of(run)
    assert (found.attribution.phases_ns, found.attribution.crossing) == (sum(per_step), crossing)

    quantiles = found.step_quantiles
    assert quantiles.steps == len(steps)
    for path, step_group in itertools.groupby(sorted(spans), key=lambda span: span[0]):
        sums = [0] * len(steps)
        for _, step, begin, end in step_group:
            sums[step] += end - begin
        expected = [sorted(sums)[int(np.ceil(q * len(steps))) - 1] for q in (0.5, 0.95)]
        assert list(quantiles.phase_ns[path]) == expected
