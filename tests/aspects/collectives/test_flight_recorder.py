# SPDX-License-Identifier: Apache-2.0
"""Collective operations on their way from PyTorch's flight recorder to a run."""

import math
import os
import pickle
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.collectives import flight_recorder
from pyinstrument_gpu.aspects.collectives.flight_recorder import (
    Dump,
    Entry,
    FlightRecorderError,
    GroupStatus,
)
from pyinstrument_gpu.aspects.collectives.log import MOST_RANKS, Clocks, CollectiveLog
from pyinstrument_gpu.aspects.collectives.watch import (
    LARGEST_SHARE,
    CollectiveWatch,
    wait_until_next_s,
)
from pyinstrument_gpu.core.file.items import COLLECTIVE_ITEM
from pyinstrument_gpu.core.run import Run
from tests.helpers.driver_calls import driver
from tests.helpers.script import run_script
from tests.helpers.simulated_cuda import CaptureMode, Result, simulated_cuda

WALL_NS = 1_800_000_000_000_000_000
BEGAN = Clocks(100, WALL_NS + 100)


def raw(record: int, **fields: Any) -> dict[str, Any]:
    """An operation as torch gives it."""
    return {
        "record_id": record,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": record + 1,
        "p2p_seq_id": 0,
        "profiling_name": "gloo:all_reduce",
        "time_created_ns": WALL_NS + 1000 * (record + 1),
        "input_sizes": [[10, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[10, 4]],
        "output_dtypes": ["Float"],
        "state": "scheduled",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": True,
        "is_p2p": False,
        **fields,
    }


def dumped(*entries: Mapping[str, Any], enqueued: int = -1) -> Dump:
    status = {
        "last_enqueued_collective": enqueued,
        "last_started_collective": -1,
        "last_completed_collective": enqueued,
    }
    document = {"version": "2.10", "entries": [*entries], "pg_status": {"0": status}}
    return flight_recorder.decode(pickle.dumps(document, protocol=2))


def entry(record: int, **fields: Any) -> Entry:
    return dumped(raw(record, **fields)).entries[0]


def clocks(run_ns: int, drift_ns: int = 0) -> Clocks:
    return Clocks(run_ns, WALL_NS + run_ns - drift_ns)


def log_of(began: Clocks = BEGAN) -> CollectiveLog:
    return CollectiveLog(began, lambda name: (0, 1))


def items_of(data: bytes) -> Any:
    return np.frombuffer(data, COLLECTIVE_ITEM)


# What torch gives


def test_an_operation_of_nccl() -> None:
    found = entry(
        4,
        process_group=("7", "tp"),
        profiling_name="nccl:all_gather",
        input_sizes=[[8], [2, 2]],
        input_dtypes=["BFloat16", "Float8_e4m3fn"],
        output_sizes=[[64]],
        output_dtypes=["Half"],
        state="started",
        retired=False,
        time_discovered_started_ns=WALL_NS + 7000,
        duration_ms=0.25,
    )
    assert found == Entry(
        record=4,
        number="0",
        group="7",
        description="tp",
        sequence=5,
        operation="all_gather",
        backend="nccl",
        size=128,
        created_ns=WALL_NS + 5000,
        started_ns=WALL_NS + 7000,
        ended_ns=None,
        duration_ns=250_000,
        is_p2p=False,
        is_done=False,
    )


def test_an_operation_from_point_to_point() -> None:
    found = entry(4, profiling_name="nccl:send 0->1", is_p2p=True, p2p_seq_id=3)
    assert (found.operation, found.sequence, found.is_p2p) == ("send", 3, True)


def test_bytes_of_a_type_that_is_not_known_are_not_known() -> None:
    assert entry(0, input_dtypes=["Float4_e2m1fn_x2"]).size is None
    assert entry(0, input_sizes=[], input_dtypes=[], output_sizes=[], output_dtypes=[]).size == 0


def test_the_status_of_groups() -> None:
    assert dumped(enqueued=9).status == {"0": GroupStatus(9, None, 9)}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        pickle.dumps([]),
        pickle.dumps({"entries": [{}]}),
        pickle.dumps({"entries": [raw(0, process_group="0")]}),
        pickle.dumps({"pg_status": {"0": {}}}),
        pickle.dumps({"entries": [], "more": os.getcwd}),
        pickle.dumps({"entries": [], "more": Path()}),
    ],
)
def test_what_is_not_known_is_one_error(data: bytes) -> None:
    with pytest.raises(FlightRecorderError):
        flight_recorder.decode(data)


def test_what_a_pickle_calls_is_not_called(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "harm"),)

    with pytest.raises(FlightRecorderError):
        flight_recorder.decode(pickle.dumps({"entries": [Harm()]}))
    assert not (tmp_path / "harm").exists()


@pytest.mark.parametrize("size", ["0", "1000000", "9" * 5000])
@pytest.mark.parametrize("name", ["TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"])
def test_a_ring_without_room_or_with_too_much_is_not_read(
    name: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, size)
    with pytest.raises(FlightRecorderError, match=name):
        flight_recorder.dump_functions()


@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_a_torch_with_two_flight_recorders_is_read_where_there_are_operations(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dump_of(own: str) -> Any:
        entries = [raw(0, profiling_name=f"{own}:all_reduce")] if own == backend else []
        return lambda *arguments: pickle.dumps({"entries": entries})

    module = SimpleNamespace(_dump_fr_trace=dump_of("gloo"), _dump_nccl_trace=dump_of("nccl"))
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", module)
    assert [entry.backend for entry in flight_recorder.read().entries] == [backend]


# What becomes of it


def test_each_operation_is_taken_once() -> None:
    log = log_of()
    entries = [entry(i) for i in range(5)]
    first = items_of(log.add(entries[:3], clocks(3500)))
    assert first["created_ns"].tolist() == [1000, 2000, 3000]
    assert first["sequence"].tolist() == [1, 2, 3]
    assert first["bytes"].tolist() == [160] * 3
    assert first["ended_ns"].tolist() == [-1] * 3
    assert log.add(entries[:3], clocks(3600)) == b""
    assert items_of(log.add(entries, clocks(5500)))["created_ns"].tolist() == [4000, 5000]
    assert log.missed == 0
    assert log.facts() == {
        "groups": [
            {"name": "0", "description": "default_pg", "ranks": [0, 1], "backend": "gloo"},
        ],
        "operations": ["all_reduce"],
        "missed": 0,
    }


def test_what_was_created_before_the_recording_does_not_count() -> None:
    log = log_of(Clocks(0, WALL_NS + 2500))
    entries = [entry(i) for i in range(40, 44)]
    for number, one in enumerate(entries):
        entries[number] = one._replace(created_ns=WALL_NS + 1000 * (number + 1))
    taken = items_of(log.add(entries, Clocks(3000, WALL_NS + 5500)))
    assert taken["created_ns"].tolist() == [500, 1500]
    assert log.missed == 0


def test_what_had_left_the_ring_is_missed() -> None:
    log = log_of()
    log.add([entry(i) for i in range(3)], clocks(3500))
    taken = log.add([entry(i) for i in range(10, 12)], clocks(13_000))
    assert len(items_of(taken)) == 2
    assert log.missed == 7


def test_of_an_operation_whose_end_is_awaited_it_is_waited_for() -> None:
    log = log_of()
    begun = entry(0, retired=False, state="started", time_discovered_started_ns=WALL_NS + 1500)
    assert log.add([begun, entry(1)], clocks(2500)) != b""
    assert log.add([begun, entry(1)], clocks(2600)) == b""
    ended = begun._replace(ended_ns=WALL_NS + 2700, duration_ns=900, is_done=True)
    (taken,) = items_of(log.add([ended, entry(1)], clocks(3000)))
    assert (taken["started_ns"], taken["ended_ns"], taken["duration_ns"]) == (1500, 2700, 900)
    assert log.add([ended, entry(1)], clocks(3100)) == b""


def test_one_that_leaves_the_ring_before_its_end_is_taken_as_it_was() -> None:
    log = log_of()
    log.add([entry(0, retired=False), entry(1)], clocks(2500))
    (taken,) = items_of(log.add([entry(1)], clocks(2600)))
    assert (taken["created_ns"], taken["ended_ns"]) == (1000, -1)
    assert log.missed == 0


def test_at_the_end_those_without_an_end_are_taken_too() -> None:
    log = log_of()
    log.add([entry(0, retired=False)], clocks(1500))
    assert len(items_of(log.add([entry(0, retired=False)], clocks(1600), with_unended=True))) == 1
    assert log.add([entry(0, retired=False)], clocks(1600), with_unended=True) == b""


def test_times_follow_the_runs_clock_between_two_readings() -> None:
    # The wall clock is slower by 1 ns in 2000.
    log = log_of(Clocks(0, WALL_NS))
    entries = [entry(i)._replace(created_ns=WALL_NS + 1_000_000 * i) for i in (1, 2)]
    taken = items_of(log.add(entries, Clocks(2_001_000, WALL_NS + 2_000_000)))
    assert taken["created_ns"].tolist() == [1_000_500, 2_001_000]


def test_two_readings_at_once_do_not_move_what_came_before() -> None:
    log = log_of(Clocks(1_000_000, WALL_NS + 1_000_000))
    one = entry(0)._replace(created_ns=WALL_NS + 2)
    (taken,) = items_of(log.add([one], Clocks(1_001_050, WALL_NS + 1_001_000)))
    assert taken["created_ns"] == 2


def test_where_the_wall_clock_was_set_times_are_unknown() -> None:
    log = log_of()
    log.add([entry(0)], clocks(1500))
    hour_ns = 3_600_000_000_000
    (taken,) = items_of(log.add([entry(0), entry(1)], clocks(3000, drift_ns=hour_ns)))
    assert (taken["created_ns"], taken["sequence"]) == (-1, 2)
    later = entry(2)._replace(created_ns=WALL_NS + 4000 - hour_ns)
    (taken,) = items_of(log.add([later], clocks(5000, drift_ns=hour_ns)))
    assert taken["created_ns"] == 4000


def test_groups_operations_and_ranks_are_bounded() -> None:
    everybody = tuple(range(MOST_RANKS))
    log = CollectiveLog(BEGAN, lambda name: everybody)
    entries = [
        entry(i, process_group=(str(i), "x\n"), profiling_name=f"gloo:operation{i % 1030}")
        for i in range(1100)
    ]
    taken = items_of(log.add(entries, clocks(2_000_000)))
    facts = log.facts()
    assert len(taken) == 1024
    assert log.missed == 1100 - 1024
    assert len(facts["groups"]) == len(facts["operations"]) == 1024
    assert [group["ranks"] is None for group in facts["groups"][:3]] == [False, True, True]
    assert facts["groups"][0]["description"] == "x?"


# While a recording goes on


class Ring:
    """A flight recorder to be read: `dump`, which a test changes."""

    def __init__(self) -> None:
        self.dump: Dump | Exception = Dump([], {})
        self.was_read = threading.Event()

    def __call__(self) -> Dump:
        self.was_read.set()
        if isinstance(self.dump, Exception):
            raise self.dump
        return self.dump


def begin(recording: pig.Recording, ring: Ring) -> CollectiveWatch:
    recording.watchers["collectives"] = watch = CollectiveWatch(ring)
    watch.begin(recording)
    watch.has_ranks(recording._environment["anchor"], lambda name: (0, 1))
    assert ring.was_read.wait(60)
    return watch


def made_now(recording: pig.Recording, *records: int) -> list[Entry]:
    anchor = recording._environment["anchor"]
    offset_ns = anchor["realtime_ns"] - anchor["run_ns"]
    # Milliseconds apart from the begin: two readings of the clocks differ a little in their offset.
    return [entry(i)._replace(created_ns=offset_ns + (i + 1) * 10**6) for i in records]


def test_it_is_read_now_and_then_and_at_the_end(tmp_path: Path) -> None:
    ring = Ring()
    with pig.record(tmp_path / "a.gpurun") as recording:
        watch = begin(recording, ring)
        ring.dump = Dump(made_now(recording, 0, 1), {"0": GroupStatus(2, None, 1)})
        assert watch.read() == [("0", GroupStatus(2, None, 1), "all_reduce")]
        assert len(recording.snapshot().collectives.events) == 2
        ring.dump = Dump(made_now(recording, 5), {})
    found = recording.run.collectives
    assert found.was_read
    assert found.missed == 3
    assert found.events["sequence"].tolist() == [1, 2, 6]
    assert found.groups[0].ranks == (0, 1)
    assert recording.run.notes == ()


@pytest.mark.parametrize("error", [FlightRecorderError("another form"), ZeroDivisionError("oh")])
def test_what_fails_is_a_note_and_no_error(error: Exception) -> None:
    ring = Ring()
    ring.dump = error
    with pig.record() as recording:
        begin(recording, ring)
    assert not recording.run.collectives.was_read
    (note,) = recording.run.notes
    assert note.startswith("PyTorch's flight recorder was not read: ")
    assert str(error) in note


def test_a_second_recording_begins_afresh() -> None:
    ring = Ring()
    with pig.record() as recording:
        begin(recording, ring)
        ring.dump = Dump(made_now(recording, 0, 1), {})
    assert len(recording.run.collectives.events) == 2
    with pig.record() as second:
        begin(second, ring)
    assert len(second.run.collectives.events) == 0
    assert second.run.collectives.missed == 0


def test_reading_it_leaves_the_captures_of_other_threads_valid() -> None:
    """A dump asks for the event of each operation that torch's watchdog has not seen the end of."""
    with simulated_cuda(clock=False) as cuda, pig.record(device_timing=False) as recording:
        context = cuda.devices[0].activate()
        event = driver.event()
        driver.record(event, cuda.default_stream)
        stream = cuda.devices[0].create_stream()
        answers = []

        def read() -> Dump:
            cuda.make_current(context)
            answers.append(driver.query(event))
            mode = driver.exchange_mode(CaptureMode.RELAXED)
            assert mode == CaptureMode.RELAXED
            return Ring()()

        recording.watchers["collectives"] = watch = CollectiveWatch(read)
        watch.begin(recording)
        stream.begin_capture()  # in global mode, as torch does it
        watch.has_ranks(recording._environment["anchor"], lambda name: (0, 1))
        watch.read()
        assert driver.exchange_mode(CaptureMode.GLOBAL) == CaptureMode.GLOBAL
        stream.end_capture()
        assert set(answers) == {Result.SUCCESS}
        assert cuda.captures_invalidated == 0
    assert recording.run.collectives.notes == ()


def test_without_a_process_group_it_is_not_read() -> None:
    ring = Ring()
    with pig.record() as recording:
        recording.watchers["collectives"] = CollectiveWatch(ring)
    assert not ring.was_read.is_set()
    assert not recording.run.collectives.was_read


RANKS = """
import os, sys, threading
import torch
import torch.distributed as dist

import pyinstrument_gpu as pig

folder = sys.argv[1]
child = os.fork()
rank = 0 if child else 1
with pig.record(f"{folder}/rank{rank}.gpurun") as recording:
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    everybody = dist.new_group([0, 1], group_desc="everybody")
    x = torch.ones(6)
    for _ in range(3):
        with pig.gpu_step():
            dist.all_reduce(x)
    dist.broadcast(x, 0, group=everybody)
    dist.send(x, 1) if child else dist.recv(x, 0)
    wait = threading.Thread(target=dist.barrier)  # beside the steps
    wait.start()
    wait.join()
    dist.destroy_process_group()
    assert threading.active_count() == 1
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""


def test_two_ranks(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run_script(RANKS, tmp_path, environment={"GLOO_SOCKET_IFNAME": "lo"})
    runs = [Run.load(tmp_path / f"rank{rank}.gpurun") for rank in range(2)]
    for run in runs:
        found = run.collectives
        assert found.was_read
        assert found.missed == 0
        assert [(group.ranks, group.backend) for group in found.groups] == [((0, 1), "gloo")] * 2
        assert found.groups[1].description == "everybody"
        names = [found.operations[number] for number in found.events["operation"]]
        assert names[-5:-1] == ["all_reduce"] * 3 + ["broadcast"]
        reduced = found.events[found.events["operation"] == found.operations.index("all_reduce")]
        assert reduced["bytes"].tolist() == [24] * 3
        steps = run.steps.closed
        assert (reduced["created_ns"] >= steps["begin_ns"]).all()
        assert (reduced["created_ns"] <= steps["end_ns"]).all()
        waits = found.waits
        assert waits["is_p2p"].tolist()[-5:] == [False] * 4 + [True]
        in_steps = waits[-5:-2]
        assert (steps["begin_ns"] <= in_steps["begin_ns"]).all()
        assert (in_steps["begin_ns"] <= in_steps["end_ns"]).all()
        assert (in_steps["end_ns"] <= steps["end_ns"]).all()
        assert 0 <= found.waits_since_ns <= waits["begin_ns"][0]
    first, second = (run.collectives for run in runs)
    assert first.groups == second.groups
    columns = ["group", "operation", "sequence", "bytes"]
    assert (first.events[columns] == second.events[columns]).all()


@given(
    costs_s=st.lists(st.floats(0, 1), min_size=2, max_size=5),
    wall_s=st.floats(1.6e9, 2e9),
)
def test_ranks_read_at_the_same_moments(costs_s: list[float], wall_s: float) -> None:
    """Whoever reads least often reads together with all others, and nobody too often."""
    waits_s = [wait_until_next_s(cost_s, wall_s) for cost_s in costs_s]
    slowest = waits_s[costs_s.index(max(costs_s))]
    for cost_s, wait_s in zip(costs_s, waits_s, strict=True):
        interval_s = 2.0 ** math.ceil(math.log2(max(1.0, cost_s / LARGEST_SHARE)))
        assert 0 < wait_s <= interval_s and interval_s >= cost_s / LARGEST_SHARE
        assert (slowest - wait_s) % interval_s == pytest.approx(0, abs=1e-5) or (
            slowest - wait_s
        ) % interval_s == pytest.approx(interval_s, abs=1e-5)
