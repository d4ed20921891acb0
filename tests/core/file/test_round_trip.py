# SPDX-License-Identifier: Apache-2.0
"""Any run, written as a run file and read again."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.file.steps import is_behind_its_step
from pyinstrument_gpu.core.record import OpenPhase, Thread, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.core.steps import Step, Steps, StepTotals
from tests.helpers.run_writer import encode

ENVIRONMENTS = st.fixed_dictionaries(
    {},
    optional={
        "host": st.text(st.sampled_from("aé 字"), max_size=20),
        "rank": st.integers(0, 2**31 - 1),
        "arguments": st.lists(st.text(st.sampled_from("a\n\udcff")), max_size=3),
        "command": st.lists(st.text(st.sampled_from("a\n\udcff")), max_size=3),
        "overhead": st.fixed_dictionaries({}, optional={"phase_ns": st.floats(0, 1e9)}),
        "device_timing": st.none(),
    },
)
times = st.integers(0, 2**40)
counts = st.integers(0, 2**62)
texts = st.text(max_size=20) | st.sampled_from(("\ud800", "a/b", "%", "x" * 256))


@st.composite
def device_clocks(draw: st.DrawFn, device: int) -> DeviceClock:
    """A clock with up to four points."""
    count = draw(st.integers(1, 4))
    columns = (
        sorted(draw(st.sets(times, min_size=count, max_size=count))),
        sorted(draw(st.sets(times, min_size=count, max_size=count))),
        draw(st.lists(times, min_size=count, max_size=count)),
    )
    return DeviceClock(device, *(np.array(column, np.int64) for column in columns))


def place(
    clock: DeviceClock,
    spans: NDArray[np.void],
    device_ns: NDArray[np.int64],
    device_clock_ns: NDArray[np.int64],
) -> None:
    """Write where the device times of a device are on the run's axis."""
    of_device = np.flatnonzero((spans["device"] == clock.device) & (device_ns >= 0))
    begin_ns = clock.on_run_axis(device_clock_ns[of_device])
    end_ns = clock.on_run_axis((device_clock_ns + device_ns)[of_device])
    known = (begin_ns >= 0) & (end_ns >= 0)
    spans["device_begin_ns"][of_device[known]] = begin_ns[known]
    spans["device_end_ns"][of_device[known]] = end_ns[known]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    names = draw(st.lists(texts, unique=True, min_size=1, max_size=5))
    name_ids = st.integers(0, len(names) - 1)
    paths: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 6))):
        path = (draw(st.integers(-1, len(paths) - 1)), draw(name_ids))
        if path not in paths:
            paths.append(path)
    threads = draw(st.lists(st.builds(Thread, counts, texts), min_size=1, max_size=3))
    path_ids, thread_ids = st.integers(0, len(paths) - 1), st.integers(0, len(threads) - 1)

    places = st.tuples(st.integers(0, 2), st.sampled_from([0, 1, 2, 77, 2**63]))
    streams = named_streams(draw(st.lists(places, max_size=3)))
    spans, self_ns, device_ns, device_clock_ns = [], [], [], []
    for _ in range(draw(st.integers(0, 12))):
        path_id, begin_ns, duration_ns = draw(path_ids), draw(times), draw(times)
        step, depth = draw(st.integers(-1, 9)), draw(st.integers(0, 65535))
        flags = draw(st.sampled_from([0, 1, 2, 3, 6, 7, 8]))
        stream = draw(st.integers(-1, len(streams) - 1))
        timed = stream >= 0 and not flags & SpanFlag.DEVICE_UNFINISHED and draw(st.booleans())
        device_ns.append(draw(times) if timed else -1)
        device_clock_ns.append(draw(times) if timed else -1)
        if not timed and not flags & SpanFlag.DEVICE:
            stream = -1  # such a span leaves nothing behind that could name a stream
        device = streams[stream].device if stream >= 0 else -1
        self_ns.append(draw(st.integers(-1, duration_ns)))
        spans.append(
            (
                *(paths[path_id][1], path_id, step, depth, draw(thread_ids), device, stream),
                *(begin_ns, begin_ns + duration_ns, -1, -1, -1, flags),
            )
        )
    steps = []
    for index in sorted(draw(st.sets(st.integers(0, 20)))):
        begin_ns, duration_ns = draw(times), draw(times)
        samples = draw(st.floats(0, 1e6) | st.just(math.nan))
        items, complete = draw(st.integers(0, 2**32 - 1)), draw(st.booleans())
        steps.append(
            (index, begin_ns, begin_ns + duration_ns, samples, items, complete, draw(thread_ids))
        )
    open_step = None
    if draw(st.booleans()):
        known_samples = draw(st.none() | st.floats(0, 1e6))
        open_step = Step(99, draw(times), -1, known_samples, draw(counts), False, draw(thread_ids))
    clocks = [draw(device_clocks(device)) for device in sorted(draw(st.sets(st.integers(0, 2))))]
    made, closed = np.array(spans, dtype=SPAN_DTYPE), np.array(steps, dtype=STEP_DTYPE)
    behind = is_behind_its_step(closed, made["step"], made["host_begin_ns"])
    made["step"][behind] = -1  # where loading has them
    exact_ns, clock_ns = np.array(device_ns, np.int64), np.array(device_clock_ns, np.int64)
    for clock in clocks:
        place(clock, made, exact_ns, clock_ns)
    timing = None
    if draw(st.booleans()):
        timing = DeviceTimingSummary(draw(st.integers(1, 99)), draw(counts), draw(counts))
    run = Run(
        names=names,
        path_parents=[parent for parent, _ in paths],
        path_names=[name for _, name in paths],
        threads=threads,
        streams=streams,
        span_device_ns=exact_ns,
        span_device_clock_ns=clock_ns,
        device_clocks=clocks,
        device_timing=timing,
        environment=draw(ENVIRONMENTS),
        dropped=draw(st.dictionaries(texts, counts, max_size=3)),
        spans=made,
        span_self_ns=np.array(self_ns, dtype=np.int64),
        steps=Steps.with_open(closed, open_step),
        open_step=open_step,
        complete=draw(st.booleans()),
        duration_ns=2**42,
        harvester_cpu_ns=draw(counts),
        anchor={"run_ns": draw(times)},
    )
    if timing is not None:
        pending = draw(st.dictionaries(st.sampled_from(run.paths), st.integers(1, 99), max_size=2))
        run.pending_device_work = pending
    run.open_phases = tuple(
        OpenPhase(run.paths[draw(path_ids)], draw(thread_ids), draw(times), step, 0)
        for step in draw(st.lists(st.integers(-1, 9), max_size=2))
    )
    return run


def with_whole_run_statistics(run: Run, host: Statistic) -> Run:
    """The run with statistics that its history does not hold."""
    return Run(
        names=run.names,
        path_parents=run.path_parents,
        path_names=run.path_names,
        spans=run.spans,
        span_self_ns=run.span_self_ns,
        threads=run.threads,
        streams=run.streams,
        span_device_ns=run.span_device_ns,
        span_device_clock_ns=run.span_device_clock_ns,
        device_clocks=run.device_clocks,
        statistics={(0, Scope.OUTSIDE): PhaseStatistics(host, host, host, host)},
        step_totals=StepTotals(host.count, 0, 9, host.count, host.total_ns, 2.5, host),
        phases_recorded=host.count + 7,
        duration_ns=2**42,
    )


@settings(max_examples=20)
@given(runs(), st.lists(times, min_size=1))
def test_saving_and_loading_gives_the_same_run(run: Run, durations_ns: list[int]) -> None:
    once = resaved(run)
    for name in ("names", "threads", "streams", "environment", "dropped", "open_phases"):
        assert getattr(once, name) == getattr(run, name)
    assert once.open_step == run.open_step
    once.notes = ()  # what is missing is found by loading
    assert_equal(once, run)

    whole = with_whole_run_statistics(run, Statistic.of(np.array(durations_ns)))
    loaded = resaved(whole)
    assert dict(loaded.statistics) == dict(whole.statistics)
    assert loaded.step_totals == whole.step_totals
    assert loaded.phases_recorded == whole.phases_recorded


def resaved(run: Run) -> Run:
    return Run.from_bytes(encode(run))


def assert_equal(got: Run, expected: Run) -> None:
    for name in vars(Run()):
        value, wanted = getattr(got, name), getattr(expected, name)
        if isinstance(wanted, np.ndarray):
            assert value.tobytes() == wanted.tobytes(), name
            assert value.dtype == wanted.dtype, name
        elif isinstance(wanted, Steps):
            assert value.array.tobytes() == wanted.array.tobytes(), name
        else:
            assert value == wanted, name
