# SPDX-License-Identifier: Apache-2.0
"""Queue time and bottlenecks, on spans whose every time is known."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.bottleneck import Bottleneck, QueueTime
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.record import named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_runs import run_of

US = 1_000
STREAMS = named_streams([(0, 0), (1, 0)])


def span(
    host: tuple[int, int],
    device: tuple[int, int],
    blocked_us: int = 0,
    path: int = 0,
    step: int = 0,
    stream: int = 0,
) -> tuple[int, ...]:
    """A span by its times in us; blocked_us -1 unknown."""
    where = (path, path, step, 0, 0, STREAMS[stream].device, stream)
    blocked_ns = blocked_us * US if blocked_us >= 0 else -1
    times = (t * US if t >= 0 else -1 for t in (*host, *device))
    return (*where, *times, blocked_ns, 1)


def clock(uncertainty_ns: int, device: int = 0) -> DeviceClock:
    points = np.array([0, 10**15], np.int64)
    return DeviceClock(device, points, points, np.full(2, uncertainty_ns, np.int64))


def run(*spans: tuple[int, ...], uncertainty_ns: int = 0, **parts: Any) -> Run:
    clocks = [clock(uncertainty_ns, 0), clock(uncertainty_ns, 1)]
    return run_of(spans, **{"streams": STREAMS, "device_clocks": clocks, **parts})


def of_spans(run: Run) -> list[Bottleneck]:
    return [Bottleneck(kind) for kind in analysis.of(run).span_bottlenecks.tolist()]


def text(run: Run) -> str:
    return str(analysis.of(run).bottlenecks()[0])


def test_queue_time_is_device_begin_less_host_begin() -> None:
    spans = [span((10 * i, 10 * i + 5), (11 * i + 3, 11 * i + 9)) for i in range(20)]

    assert analysis.of(run(*spans, uncertainty_ns=7)).queue_times() == {
        0: QueueTime(20, 12 * US, 21 * US, 13 * US, 7.0)
    }


def test_queue_time_is_by_path_and_scope() -> None:
    made = run(
        span((0, 1), (5, 6)),
        span((0, 1), (9, 10), path=1),
        span((0, 1), (7, 8), step=-1),
        span((0, 1), (-1, -1)),
    )

    assert {
        path: one.p50_ns for path, one in analysis.of(made).queue_times(Scope.STEP).items()
    } == {
        0: 5 * US,
        1: 9 * US,
    }
    assert analysis.of(made).queue_times()[0] == QueueTime(2, 5 * US, 7 * US, 5 * US, 0.0)
    assert analysis.of(run()).queue_times() == {}


@pytest.mark.parametrize(
    ("device", "uncertainty_us", "shown"),
    [((2, 102), 3, "host"), ((2, 140), 3, None), ((50, 102), 3, None), ((2, 102), 30, None)],
    ids=["with the host", "a backlog", "late", "unknown"],
)
def test_a_device_that_follows_the_host_is_told_where_nothing_else_is(
    device: tuple[int, int], uncertainty_us: int, shown: str | None
) -> None:
    made = run(span((0, 100), device), uncertainty_ns=uncertainty_us * US)
    (phase,) = (one for one in document_of(made).phases_without_steps if one.device is not None)
    assert phase.device is not None
    assert phase.device.bottleneck == shown
    assert ("host: began and ended with the host" in made.report(verbose=True)) == (shown == "host")


def test_without_clock_nothing_is_said() -> None:
    spans = [span((0, 10), (0, 500))] * 9
    made = run(*spans, device_clocks=())

    assert analysis.of(made).queue_times() == {}
    assert text(made) == "-"
    assert np.isnan(analysis.of(made).clock_uncertainty_ns).all()


def test_uncertainty_is_that_of_the_worse_end_and_of_the_span_s_own_device() -> None:
    bent = DeviceClock(1, np.array([0, 10**6]), np.array([0, 10**6]), np.array([100, 900]))
    made = run(
        span((0, 1), (0, 500), stream=1),
        span((0, 1), (1000, 2000), stream=1),
        span((0, 1), (0, 500)),
        device_clocks=[clock(7), bent],
    )

    assert analysis.of(made).clock_uncertainty_ns.tolist() == [500.0, 1900.0, 7.0]


# One span


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        # All work was enqueued before the device began.
        (span((0, 100), (300, 900)), Bottleneck.DEVICE),
        # The device began at once, but most of its work was still to come at the end.
        (span((0, 100), (5, 900)), Bottleneck.DEVICE),
        (span((0, 100), (0, 200)), Bottleneck.DEVICE),  # half of it
        (span((0, 100), (1, 198)), Bottleneck.MIXED),  # less than half
        (span((0, 300), (0, 400)), Bottleneck.MIXED),  # a quarter
        (span((0, 300), (0, 399)), Bottleneck.LAUNCH),  # less than a quarter
        # The device kept pace with the host, and ended with it.
        (span((0, 1000), (5, 1005)), Bottleneck.LAUNCH),
        # So it does where the host waits for it.
        (span((0, 1000), (5, 1005), blocked_us=101), Bottleneck.BLOCKED),
        (span((0, 1000), (5, 1005), blocked_us=100), Bottleneck.LAUNCH),
        (span((0, 1000), (5, 1005), blocked_us=-1), Bottleneck.LAUNCH),
        # A backlog is a backlog, also if the host waited before.
        (span((0, 1000), (5, 5000), blocked_us=900), Bottleneck.DEVICE),
        # Next to no work.
        (span((0, 1000), (995, 1004)), Bottleneck.UNKNOWN),
        (span((0, 1000), (995, 1005)), Bottleneck.DEVICE),  # just enough of it
        (span((0, 1000), (-1, -1)), Bottleneck.UNKNOWN),
    ],
)
def test_bottleneck_of_a_span(case: tuple[int, ...], expected: Bottleneck) -> None:
    assert of_spans(run(case)) == [expected]


@pytest.mark.parametrize(
    ("uncertainty_ns", "backlog_us", "expected"),
    [
        (10 * US, 60, Bottleneck.DEVICE),
        (10 * US, 59, Bottleneck.UNKNOWN),
        (10 * US, 40, Bottleneck.UNKNOWN),
        (10 * US, 39, Bottleneck.MIXED),
        (10 * US, 35, Bottleneck.MIXED),
        (10 * US, 34, Bottleneck.UNKNOWN),
        (10 * US, 15, Bottleneck.UNKNOWN),
        (10 * US, 14, Bottleneck.LAUNCH),
        (50 * US, 100, Bottleneck.DEVICE),
        (51 * US, 300, Bottleneck.UNKNOWN),  # the device time is within the uncertainty
    ],
)
def test_span_within_the_uncertainty_is_not_judged(
    uncertainty_ns: int, backlog_us: int, expected: Bottleneck
) -> None:
    end = 1000 + backlog_us
    made = run(span((0, 1000), (end - 100, end)), uncertainty_ns=uncertainty_ns)
    assert of_spans(made) == [expected]


# A phase


DEVICE = span((0, 10), (5, 105))
LAUNCH = span((0, 100), (5, 105))
LAUNCH_UNKNOWN = span((0, 100), (5, 105), blocked_us=-1)
BLOCKED = span((0, 100), (5, 105), blocked_us=50)
SOME_OF_BOTH = span((0, 100), (35, 135))
NOT_JUDGED = span((0, 100), (95, 101))


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([DEVICE] * 5, "device"),
        ([DEVICE] * 4, "-"),
        ([LAUNCH] * 5, "launch"),
        ([LAUNCH_UNKNOWN] * 5, "launch?"),
        ([BLOCKED] * 5, "blocked"),
        ([DEVICE] * 4 + [LAUNCH] * 2, "device"),
        ([DEVICE] * 5 + [LAUNCH] * 3, "mixed"),
        ([SOME_OF_BOTH] * 5, "mixed"),
        ([LAUNCH] * 4 + [LAUNCH_UNKNOWN] * 2, "launch"),
        ([LAUNCH] * 3 + [LAUNCH_UNKNOWN] * 2, "launch?"),
        ([DEVICE] * 5 + [NOT_JUDGED] * 50, "device"),  # their device time is little
        ([NOT_JUDGED] * 50, "-"),
        # By device time, not by number: one long span outweighs nine short ones.
        ([span((0, 10), (5, 10_005))] + [LAUNCH] * 9, "device"),
    ],
)
def test_bottleneck_of_a_phase(spans: list[tuple[int, ...]], expected: str) -> None:
    assert text(run(*spans)) == expected


def test_no_bottleneck_where_most_of_the_stream_time_is_not_judged() -> None:
    judged = [span((0, 100), (0, 5000))] * 5
    unclear = [span((0, 1000), (500, 1500), stream=1)] * 26
    clocks = [clock(0), clock(400 * US, 1)]
    made = run(*judged, *unclear, device_clocks=clocks)

    assert text(made) == "-"
    assert text(run(*judged, *unclear[:-1], device_clocks=clocks)) == "device"


def test_bottlenecks_are_by_path_and_scope() -> None:
    made = run(
        *[DEVICE] * 5,
        *[span((0, 100), (5, 105), path=1)] * 5,
        *[span((0, 100), (5, 105), step=-1)] * 50,
    )

    inside = {path: str(one) for path, one in analysis.of(made).bottlenecks(Scope.STEP).items()}
    assert inside == {0: "device", 1: "launch"}
    assert text(made) == "launch"
    assert analysis.of(run()).bottlenecks() == {}


# Any span

times = st.integers(0, 10**9)


@st.composite
def any_spans(draw: st.DrawFn) -> tuple[int, ...]:
    host, device = sorted([draw(times), draw(times)]), sorted([draw(times), draw(times)])
    blocked_ns = draw(st.just(-1) | times)
    return (0, 0, 0, 0, 0, 0, 0, *host, *device, blocked_ns, 1)


@settings(max_examples=40)
@given(st.lists(any_spans(), max_size=8), st.integers(0, 10**7))
def test_more_uncertainty_only_takes_bottlenecks_away(
    spans: list[tuple[int, ...]], uncertainty_ns: int
) -> None:
    exact, unsure = of_spans(run(*spans)), of_spans(run(*spans, uncertainty_ns=uncertainty_ns))
    for sure, less_sure in zip(exact, unsure, strict=True):
        assert less_sure in (sure, Bottleneck.UNKNOWN)


@settings(max_examples=40)
@given(st.lists(any_spans(), max_size=8), st.integers(0, 10**7), st.integers(0, 10**6))
def test_bottleneck_holds_whatever_the_truth_within_the_uncertainty(
    spans: list[tuple[int, ...]], uncertainty_ns: int, share: int
) -> None:
    error_ns = uncertainty_ns * (2 * share - 10**6) // 10**6
    moved = [(*one[:9], one[9] + error_ns, one[10] + error_ns, *one[11:]) for one in spans]
    possible = [one[9] >= 0 for one in moved]
    truth = of_spans(run(*(one for one, can_be in zip(moved, possible, strict=True) if can_be)))
    judged = of_spans(
        run(
            *(one for one, can_be in zip(spans, possible, strict=True) if can_be),
            uncertainty_ns=uncertainty_ns,
        )
    )
    for said, true in zip(judged, truth, strict=True):
        assert said in (true, Bottleneck.UNKNOWN)


@settings(max_examples=40)
@given(any_spans())
def test_work_enqueued_before_the_device_began_is_device_bound(span: tuple[int, ...]) -> None:
    host_end_ns, stream_ns = span[8], span[10] - span[9]
    late = (*span[:9], host_end_ns, host_end_ns + stream_ns, *span[11:])
    expected = Bottleneck.DEVICE if stream_ns >= 10_000 else Bottleneck.UNKNOWN
    assert of_spans(run(late)) == [expected]


@settings(max_examples=40)
@given(any_spans())
def test_who_is_at_the_host_s_pace_had_begun_before_its_last_work_was_enqueued(
    span: tuple[int, ...],
) -> None:
    if of_spans(run(span))[0] in (Bottleneck.LAUNCH, Bottleneck.BLOCKED):
        assert span[9] < span[8]


def test_wait_for_data_is_never_launch_bound() -> None:
    spans = [span((100 * i, 100 * i + 90), (100 * i, 100 * i + 90), path=1) for i in range(20)]

    assert analysis.of(run(*spans, names=("forward", "data"))).bottlenecks() == {}
    assert 1 in analysis.of(run(*spans, names=("forward", "loader"))).bottlenecks()
