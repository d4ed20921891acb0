# SPDX-License-Identifier: Apache-2.0
"""The Perfetto export, read back as JSON and compared with the run."""

from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from hypothesis import given, settings

from pyinstrument_gpu.aspects.memory.data import MEMORY_POINT_DTYPE, Memory
from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.aspects.nonfinite.data import Nonfinite, Origin
from pyinstrument_gpu.core.record import OpenPhase, Thread, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.export.perfetto import write
from tests.helpers.made_runs import (
    rank,
    run_of,
    runs,
    syncs_of,
    with_lengths_on_device,
    written,
)
from tests.helpers.trace_events import Slice, Trace

UNKNOWN = -1


def trace_of(*of_runs: Run) -> Trace:
    return Trace(written(write, *of_runs))


def host(path: int, begin_ns: int, end_ns: int, depth: int = 0, thread: int = 0) -> tuple[int, ...]:
    return (path, path, 0, depth, thread, -1, -1, begin_ns, end_ns, -1, -1, -1, 1)


def test_times_are_written_digit_by_digit() -> None:
    text = written(write, run_of([host(0, 2**53 + 1, 2**62 + 7), host(0, 0, 1)]))
    assert b'"ts":9007199254740.993,"dur":4602678819172646.' in text
    assert b'"ts":0.000,"dur":0.001,' in text


def test_waits_have_a_track_beside_their_thread() -> None:
    run = run_of([host(0, 0, 5_000)])
    run.environment["cwd"] = "/home/a, b"
    run.syncs = syncs_of(run)
    item = {"file": "/home/a, b/train.py", "line": 57, "function": "train"}
    copy = {"file": "/home/a, b/data.py", "line": 7, "function": "<lambda>", "allowed": True}
    name, copy_name = "wait: .item() train.py:57", "wait: copy from pageable memory data.py:7"
    first = item | {"bytes": 4, "step": 3, "blocked_ns": 50, "path": "forward"}
    third = copy | {"bytes": 1 << 40, "step": 4, "blocked_ns": 5, "path": "forward"}
    unpriced = item | {"bytes": 8, "step": 3, "path": "forward/attention"}
    trace = trace_of(run)
    assert trace.slices("sync") == [
        ("MainThread waits", name, 100, 150, first),
        ("MainThread waits", name, 200, 1_201, item | {"bytes": 4, "blocked_ns": 1_001}),
        ("MainThread waits", copy_name, 2_000, 2_005, third),
        ("thread 12 waits", name, 150, 150, unpriced),
    ]
    assert len(trace.slices("phase")) == 1


def test_steps_have_a_track_of_their_own() -> None:
    steps = [
        (0, 10, 20, 32, 1, True, 0),
        (1, 20, 25, np.nan, 0, False, 1),
        (2, 30, -1, 0.5, 2, False, 0),
    ]
    trace = trace_of(run_of([], steps=Steps(np.array(steps, STEP_DTYPE)), duration_ns=50))
    main = {"thread": "MainThread"}
    assert trace.slices("step") == [
        (
            "steps",
            "step 0",
            10,
            20,
            {"step": 0, "samples": 32, "items": 1, "complete": True} | main,
        ),
        ("steps", "step 1", 20, 25, {"step": 1, "items": 0, "complete": False, "thread": ""}),
        (
            *("steps", "step 2", 30, 50),
            {"step": 2, "samples": Decimal("0.5"), "items": 2, "complete": False, "open": True}
            | main,
        ),
    ]


def test_memory_is_a_counter_at_the_end_of_steps() -> None:
    steps = [(number, number * 10, number * 10 + 9, 1, 1, True, 0) for number in range(2, 5)]
    run = run_of([], steps=Steps(np.array(steps, STEP_DTYPE)), duration_ns=50)
    # The history has lost step 1, and the reserved bytes of step 4 are unknown.
    points = [(1, 10, 20), (2, 1 << 40, 1 << 41), (4, 12, -1)]
    run.memory = Memory(device=0, points=np.array(points, MEMORY_POINT_DTYPE))
    counters = [
        (event["name"], event["ts"], event["args"]["value"])
        for event in trace_of(run).events
        if event["ph"] == "C"
    ]
    assert counters == [
        ("memory/allocated_bytes", Decimal("0.029"), 1 << 40),
        ("memory/allocated_bytes", Decimal("0.049"), 12),
        ("memory/reserved_bytes", Decimal("0.029"), 1 << 41),
    ]


def test_the_first_value_that_is_not_finite_is_an_instant() -> None:
    steps = [(number, number * 10, number * 10 + 9, 1, 1, True, 0) for number in range(3)]
    run = run_of([], steps=Steps(np.array(steps, STEP_DTYPE)), duration_ns=50)
    run.nonfinite = Nonfinite(origin=Origin(step=2, where="forward", module='a "b"', value="inf"))
    (instant,) = [event for event in trace_of(run).events if event["ph"] == "i"]
    assert instant == {
        "ph": "i",
        "s": "p",
        "pid": 1,
        "ts": Decimal("0.02"),
        "cat": "nonfinite",
        "name": 'first inf: a "b"',
        "args": {"step": 2, "where": "forward", "module": 'a "b"', "detail": ""},
    }
    run.nonfinite = Nonfinite(origin=Origin(step=3, where="forward"))
    assert not [event for event in trace_of(run).events if event["ph"] == "i"]


def test_open_phases_end_with_the_run() -> None:
    run = run_of(
        [host(1, 10, 20, 1)],
        ("a/b%", "in"),
        duration_ns=99,
        complete=False,
        open_phases=[OpenPhase("a%2Fb%25", 0, 10, -1, 0), OpenPhase("a%2Fb%25", 1, 98, 4, 0)],
    )
    trace = trace_of(run)
    assert trace.slices("phase") == [
        ("MainThread", "a/b%", 10, 99, {"path": "a%2Fb%25", "open": True}),
        ("MainThread", "in", 10, 20, {"path": "a%2Fb%25/in", "step": 0}),
        ("thread 12", "a/b%", 98, 99, {"path": "a%2Fb%25", "open": True, "step": 4}),
    ]
    assert trace.about[0]["complete"] is False


def test_what_does_not_nest_goes_to_further_tracks() -> None:
    spans = [
        host(0, 0, 10),
        host(0, 5, 15, 1),
        host(0, 7, 20, 2),
        host(0, 8, 9, 3),
        host(0, 10, 12, 1),
    ]
    assert [(one.track, one.begin_ns) for one in trace_of(run_of(spans)).slices("phase")] == [
        ("MainThread", 0),
        ("MainThread", 8),
        ("MainThread (2)", 5),
        ("MainThread (2)", 10),
        ("MainThread (3)", 7),
    ]


def test_main_thread_comes_before_the_others() -> None:
    environment = {"pid": 12, "host": "box", "rank": 3}
    spans = [host(0, 0, 1, thread=0), host(0, 0, 1, thread=1)]
    threads = [Thread(11, "loader"), Thread(12, "main")]
    trace = trace_of(run_of(spans, environment=environment, threads=threads))
    assert trace.names == {
        (12, None): "rank 3: process",
        (12, 12): "main",
        (12, 11): "loader",
    }
    order = {
        event["tid"]: event["args"]["sort_index"]
        for event in trace.events
        if event["name"] == "thread_sort_index"
    }
    assert sorted(order, key=lambda tid: order[tid]) == [12, 11]


def test_device_streams_have_tracks_flows_and_queue_time() -> None:
    spans = [
        (1, 1, 0, 1, 0, 0, 7, 1_000, 2_000, 5_000, 6_000, -1, 1),
        (0, 0, 0, 0, 0, 0, 7, 1_000, 2_500, 4_001, 6_000, 300, 1),
        (0, 0, 1, 0, 0, 1, 14, 9_000, 9_900, 8_000, 9_100, -1, 1),
        (0, 0, 1, 0, 0, 1, 14, 9_950, 9_990, 9_950, -1, -1, 1),  # not harvested
    ]
    trace = trace_of(run_of(spans))
    assert trace.slices("gpu") == [
        (
            "GPU 0 stream 7",
            "forward",
            4_001,
            6_000,
            {"path": "forward", "step": 0, "blocked_ns": 300},
        ),
        ("GPU 0 stream 7", "attention", 5_000, 6_000, {"path": "forward/attention", "step": 0}),
        ("GPU 1 default stream", "forward", 8_000, 9_100, {"path": "forward", "step": 1}),
    ]
    launches = {one["bind_id"]: one for one in trace.of("phase") if one.get("flow_out")}
    arrivals = {one["bind_id"]: one for one in trace.of("gpu") if one.get("flow_in")}
    assert len(launches) == len(arrivals) == 3
    assert {
        (launches[flow]["ts"], launches[flow]["args"]["path"], arrivals[flow]["ts"])
        for flow in launches
    } == {
        (Decimal("1.000"), "forward", Decimal("4.001")),
        (Decimal("1.000"), "forward/attention", Decimal("5.000")),
        (Decimal("9.000"), "forward", Decimal("8.000")),
    }
    counters = [(one["name"], one["ts"], one["args"]) for one in trace.events if one["ph"] == "C"]
    assert counters == [
        ("GPU 0 stream 7 queue time", Decimal("1.000"), {"us": Decimal("3.001")}),
        ("GPU 0 stream 7 queue time", Decimal("1.000"), {"us": Decimal("4.000")}),
        ("GPU 1 default stream queue time", Decimal("9.000"), {"us": Decimal("-1.000")}),
    ]


def test_what_ends_together_on_a_stream_ends_from_within() -> None:
    """Perfetto keeps the order of the file where times are equal, and matches ends as brackets."""
    times = [(3, 9), (3, 9), (0, 9), (9, 12)]  # in the order of their ends
    spans = [
        (path, path, 0, 0, 0, 0, 0, *each, *each, -1, 1)
        for path, each in zip((2, 1, 0, 3), times, strict=True)
    ]
    trace = trace_of(run_of(spans, ("a", "b", "c", "d"), path_parents=[-1, 0, 1, -1]))
    events = [one for one in trace.events if one.get("cat") == "gpu"]
    assert [(one["ph"], one["name"], one["ts"] * 1000) for one in events] == [
        ("e", "GPU 0 default stream", 0),
        *(("b", "a", 0), ("b", "b", 3), ("b", "c", 3)),
        *(("e", "c", 9), ("e", "b", 9), ("e", "a", 9)),
        *(("b", "d", 9), ("e", "d", 12)),
    ]


def test_stream_time_without_a_place_on_the_axis_is_not_drawn() -> None:
    span = (0, 0, 0, 0, 0, 1, 14, 10, 20, -1, -1, -1, 3)
    trace = trace_of(run_of([span], span_device_ns=np.array([77]), device_clocks=()))
    assert trace.slices("gpu") == []
    assert not any(event["ph"] == "C" or "bind_id" in event for event in trace.events)


def test_processes_and_threads_have_their_own_numbers_where_these_differ() -> None:
    """Viewers show them behind the names. The second rank is of another machine."""
    threads = [Thread(12, "MainThread"), Thread(13, "loader"), Thread(13, "loader")]
    spans = [host(0, 0, 9, thread=thread) for thread in range(3)]
    ranks = [rank(number, 0, spans, threads=threads) for number in range(2)]
    for each in ranks:
        each.environment |= {"pid": 12, "command": ["/usr/bin/python3", "train.py", "--lr", "1"]}
    trace = trace_of(*ranks)

    assert trace.names == {
        (12, None): "rank 0: python3 train.py --lr 1",
        (12, 12): "MainThread",
        (12, 13): "loader",
        (12, 14): "loader",
        (13, None): "rank 1: python3 train.py --lr 1",
        (13, 15): "MainThread",
        (13, 16): "loader",
        (13, 17): "loader",
    }
    labels = [one["args"]["labels"] for one in trace.events if one["name"] == "process_labels"]
    assert labels == ["host box", "host box"]


def test_the_default_stream_is_the_first_by_name() -> None:
    """Perfetto sorts what is no thread so."""
    streams = named_streams([(0, 7), (0, 0), (1, 9), (1, 8), (1, 2)])
    spans = [
        (0, 0, 0, 0, 0, of.device, number, 10, 20, 30, 40, -1, 1)
        for number, of in enumerate(streams)
    ]
    trace = trace_of(run_of(spans, streams=streams))

    names = [name for _, name in trace.tracks if isinstance(name, str)]
    assert (
        names
        == sorted(names)
        == [
            *("GPU 0 default stream", "GPU 0 stream 1"),
            *("GPU 1 default stream", "GPU 1 stream 1", "GPU 1 stream 2"),
        ]
    )


def test_only_threads_have_numbers() -> None:
    """Perfetto shows these behind their names, and would make one track of what has one name."""
    run = run_of(
        [host(0, 10 * i, 10 * i + 15, thread=thread) for i in range(2) for thread in range(2)],
        threads=[Thread(12, "loader"), Thread(13, "loader")],
        steps=Steps(np.array([(0, 0, 9, 1, 1, True, 0)], STEP_DTYPE)),
        environment={"pid": 12},
    )
    run.syncs = syncs_of(run)
    assert list(trace_of(run).tracks) == [
        *((12, 12), (12, 13), (12, "steps"), (12, "loader (2)"), (12, "loader (3)")),
        *((12, "loader waits"), (12, "loader waits (2)")),
    ]


def test_ranks_are_processes_on_one_axis() -> None:
    spans = [(0, 0, 0, 0, 0, 0, 0, 10, 20, 30, 40, -1, 1)]
    trace = trace_of(rank(3, 1_000, spans), rank(1, 0, spans))
    assert [(one.begin_ns, one.end_ns) for one in trace.slices("phase")] == [
        (1_010, 1_020),
        (10, 20),
    ]
    assert [(one.begin_ns, one.end_ns) for one in trace.slices("gpu")] == [(1_030, 1_040), (30, 40)]
    assert [one["begin_ns"] for one in trace.about] == [1_000, 0]
    processes = {pid: name for (pid, tid), name in trace.names.items() if tid is None}
    assert list(processes.values()) == ["rank 3: process", "rank 1: process"]
    assert len({one["bind_id"] for one in trace.of("phase")}) == 2
    ids = [tid for _, tid in trace.names if tid is not None]
    assert len(set(ids)) == len(ids) == 2
    assert {
        event["pid"]: event["args"]["sort_index"]
        for event in trace.events
        if event["name"] == "process_sort_index"
    } == dict(zip(processes, [3, 1], strict=True))


def test_empty_run_is_a_trace_with_a_process() -> None:
    trace = trace_of(Run())
    assert trace.names == {(1, None): "process"}
    assert {event["ph"] for event in trace.events} == {"M"}


@settings(max_examples=20)
@given(runs(with_modules=True).map(with_lengths_on_device))
def test_every_run_is_read_back_exactly(run: Run) -> None:
    trace = trace_of(run)
    on_host = trace.slices("phase") + trace.slices("module")
    for slices, side in ((on_host, "host"), (trace.slices("gpu"), "device")):
        modules = [one for one in slices if "module" in one.args]
        assert modules_of(modules) == expected_modules(run, side)
        phases = [one for one in slices if "module" not in one.args]
        assert phases_of(phases) == expected_phases(run, side)
    steps = [(f"step {step.index}", step.begin_ns, step.end_ns) for step in run.steps]
    assert sorted((one.name, one.begin_ns, one.end_ns) for one in trace.slices("step")) == steps
    for track in trace.tracks.values():
        check_nesting([(one.begin_ns, one.end_ns) for _, one in track])


def phases_of(slices: Sequence[Slice]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(one.name, one.begin_ns, one.end_ns, one.args["path"]),
            *(one.args.get("step", UNKNOWN), one.args.get("blocked_ns", UNKNOWN)),
            "open" in one.args,
        )
        for one in slices
    )


def expected_phases(run: Run, side: str) -> Counter[tuple[Any, ...]]:
    expected: list[tuple[Any, ...]] = []
    for span in run.spans:
        begin_ns, end_ns = int(span[f"{side}_begin_ns"]), int(span[f"{side}_end_ns"])
        if begin_ns >= 0:
            name, path = utf8(run.names[span["phase"]]), utf8(run.paths[span["path"]])
            rest = (int(span["step"]), int(span["blocked_ns"]), False)
            expected.append((name, begin_ns, end_ns, path, *rest))
    for phase in run.open_phases if side == "host" else ():
        name = utf8(run.names[run.path_names[run.paths.index(phase.path)]])
        end_ns = max(phase.begin_ns, run.duration_ns)
        rest = (phase.step, UNKNOWN, True)
        expected.append((name, phase.begin_ns, end_ns, utf8(phase.path), *rest))
    return Counter(expected)


def modules_of(slices: Sequence[Slice]) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(one.name, one.begin_ns, one.end_ns, one.args["module"], one.args["kind"]),
            *(one.args.get("step", UNKNOWN), one.args.get("path")),
        )
        for one in slices
    )


def expected_modules(run: Run, side: str) -> Counter[tuple[Any, ...]]:
    return Counter(
        (
            *(name, int(span[f"{side}_begin_ns"]), int(span[f"{side}_end_ns"]), name),
            *(ModulePass(span["kind"]).name.lower(), int(span["step"])),
            utf8(run.paths[span["path"]]) if span["path"] >= 0 else None,
        )
        for span in run.module_spans
        for name in [utf8(run.module_names[span["module"]])]
        if span[f"{side}_begin_ns"] >= 0
    )


def utf8(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= one <= "\udfff" else one for one in text)


def check_nesting(times: Sequence[tuple[int, int]]) -> None:
    """In the file's order each lies in the innermost one that is open, or none is."""
    open_ends_ns: list[int] = []
    last_begin_ns = 0
    for begin_ns, end_ns in times:
        assert begin_ns >= last_begin_ns
        last_begin_ns = begin_ns
        while open_ends_ns and open_ends_ns[-1] <= begin_ns:
            open_ends_ns.pop()
        assert not open_ends_ns or end_ns <= open_ends_ns[-1]
        open_ends_ns.append(end_ns)
