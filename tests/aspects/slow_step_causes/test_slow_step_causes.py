# SPDX-License-Identifier: Apache-2.0
"""What holds the threads of steps up, from made files of the kernel and by a clock that stands
still."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.slow_step_causes import GIL_KIND
from pyinstrument_gpu.aspects.slow_step_causes.aspect import ASPECT
from pyinstrument_gpu.aspects.slow_step_causes.data import SlowStepCauses
from pyinstrument_gpu.aspects.slow_step_causes.watch import pressure_file
from pyinstrument_gpu.core.cause import NOTED_DTYPE, Cause, NotedCauses
from pyinstrument_gpu.native import native
from tests.helpers.clock import fake_clock

MS = 1_000_000
USUAL = 20
"""So many steps first."""


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYINSTRUMENT_GPU_PROC", str(tmp_path))
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "task").symlink_to("/proc/self/task")
    (tmp_path / "pressure").mkdir()
    press(tmp_path, 5)
    return tmp_path


@pytest.fixture
def advance() -> Iterator[Callable[[int], None]]:
    with fake_clock() as advance:
        yield advance


def press(proc: Path, total_us: int) -> None:
    text = "{} avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
    path = proc / "pressure" / "memory"
    path.write_text(text.format("some", total_us) + text.format("full", total_us // 2))


def usual_steps(advance: Callable[[int], None]) -> None:
    for _ in range(USUAL):
        with pig.gpu_step():
            advance(MS)


def causes_of(recording: pig.Recording) -> dict[str, Cause]:
    assert not recording.run.notes
    return {cause.name: cause for cause in ASPECT.causes(recording.run)}


def amounts(cause: Cause) -> dict[int, int]:
    return {
        int(one["step"]) - USUAL: int(one["time_ns"])
        for one in cause.amounts
        if one["step"] >= USUAL
    }


def test_pressure_counts_by_the_part_of_the_time_that_is_the_steps(
    proc: Path, advance: Callable[[int], None]
) -> None:
    with pig.record() as recording:
        usual_steps(advance)
        with pig.gpu_step():
            press(proc, 2005)
            advance(200 * MS)
        with pig.gpu_step():  # nobody looks: it is short, and soon
            press(proc, 9005)
            advance(MS)
        advance(99 * MS)
        with pig.gpu_step():
            advance(100 * MS)
            press(proc, 12_005)
        with pig.gpu_step():
            advance(2 * MS)
            press(proc, 99_005)  # of several processors
    found = amounts(causes_of(recording)["memory_pressure"])
    since_ns = 200 * MS + 10 * MS  # when it was first read
    assert found.pop(0) == pytest.approx(2 * MS * 200 * MS / since_ns, rel=0.06)
    assert found == {2: 5 * MS, 3: 2 * MS}


def test_faults_are_counted_on_the_thread_of_the_step(
    proc: Path, advance: Callable[[int], None]
) -> None:
    import mmap

    pages = 1000
    memory = mmap.mmap(-1, pages * mmap.PAGESIZE)
    with pig.record() as recording:
        usual_steps(advance)
        with pig.gpu_step():
            memory[:: mmap.PAGESIZE] = bytes(pages)
            advance(20 * MS)
        with pig.gpu_step():
            memory[:: mmap.PAGESIZE] = bytes(pages)
            advance(20 * MS)
    causes = causes_of(recording)
    found = amounts(causes["page_faults"])
    assert found[0] >= 50_000  # at least some 50 ns each
    assert found[1] < found[0] / 2
    assert len(causes["page_faults"].amounts) > USUAL / 2  # of usual steps it is known, too
    assert amounts(causes["disk_pages"]) == {0: 0, 1: 0}


def test_a_thread_that_neither_ran_nor_waited_nor_slept_had_no_processor(
    proc: Path, advance: Callable[[int], None]
) -> None:
    waits = proc / "thread-self" / "schedstat"
    waits.parent.mkdir()
    waits.write_text("1 0 1")
    steps = 20
    with pig.record() as recording:
        usual_steps(advance)
        for step in range(1, steps + 1):
            with pig.gpu_step():
                waits.write_text(f"1 {5 * step * MS} 1")
                advance(20 * MS)
            for _ in range(4):  # one of a few is long, by the median of the last ones
                with pig.gpu_step():
                    advance(MS)
    causes = causes_of(recording)
    ran_ns = amounts(causes["computing"])
    assert {step for step in ran_ns if step % 5 == 0} == set(range(0, 5 * steps, 5))
    # Of those in which it has slept, as to write a file may make it, nothing is known.
    found = {step: ns for step, ns in amounts(causes["steal"]).items() if step % 5 == 0}
    assert found
    assert found == {step: 15 * MS - ran_ns[step] for step in found}
    # Of 20 ms it has waited for a processor for 5: the rest is what others took, or sleep.
    asleep_ns = amounts(causes["asleep"])
    assert all(asleep_ns[step] == 0 for step in found)
    others = ran_ns.keys() - found.keys() - {0}
    long_ones = {step for step in others if step % 5 == 0}
    assert all(asleep_ns[step] == 15 * MS - ran_ns[step] for step in long_ones)


def test_where_nothing_is_to_be_seen_nothing_is_said(
    proc: Path, advance: Callable[[int], None]
) -> None:
    (proc / "self" / "task").unlink()
    (proc / "pressure" / "memory").unlink()
    with pig.record() as recording:
        usual_steps(advance)
    names = ["steal", "page_faults", "disk_pages", "asleep", "computing"]
    assert [*causes_of(recording)] == names
    assert "Waits for the GIL" in next(iter(ASPECT.unknown(recording.run)))


@pytest.mark.parametrize(
    ("waits_ms", "other"),
    [
        ({8: 30, 9: 10}, "the thread Thread-1 (count_words) (train.py:14)"),
        ({9: 30, 77: 20}, "the thread logger"),
        ({8: 20, 9: 20}, "other threads of Python"),  # neither ran during most of it
        ({77: 40}, "other threads of Python"),  # one that is not of Python
    ],
)
def test_the_thread_that_ran_while_steps_waited_for_the_gil_is_named(
    proc: Path, advance: Callable[[int], None], waits_ms: dict[int, int], other: str
) -> None:
    with pig.record() as recording:
        usual_steps(advance)
    run = recording.run
    names = ((8, "Thread-1 (count_words)"), (9, "logger"))
    run.slow_step_causes = SlowStepCauses(
        is_gil_seen=True,
        has_pressure=False,
        threads=names,
        targets=((8, "train.py", 14, "count_words"),),
    )
    thread = int(run.steps.closed["thread"][0])
    rows = [(0, ms * MS, -1, thread, GIL_KIND, note) for note, ms in waits_ms.items()]
    run.noted_causes = NotedCauses(np.array(rows, NOTED_DTYPE))
    (cause,) = [one for one in ASPECT.causes(run) if one.name == "gil_wait"]
    assert cause.remedy == f"while steps run, do less in {other}, or do it in a process"


def test_in_a_run_of_few_steps_nothing_is_looked_for(proc: Path) -> None:
    with pig.record() as recording, pig.gpu_step():
        pass
    assert not causes_of(recording)


@pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/syscall"), reason="the kernel has no such file"
)
def test_threads_that_wait_for_the_gil_can_be_told() -> None:
    with pig.record() as recording:
        usual_steps(lambda ns: None)
        assert any(native.watch_gil(b"/proc/self/task") for _ in range(20))  # on a busy machine
        assert not native.watch_gil(b"/nowhere")
    known = recording.run.slow_step_causes
    assert known is not None
    assert (threading.get_native_id(), threading.current_thread().name) in known.threads


def test_a_thread_that_has_ended_is_known_with_what_it_ran(
    proc: Path, advance: Callable[[int], None]
) -> None:
    ends = threading.Event()
    thread = threading.Thread(target=lambda: ends.wait(), name="waits")
    line = sys._getframe().f_lineno - 1
    with pig.record() as recording:
        thread.start()
        usual_steps(advance)
        ends.set()
        thread.join()
    known = recording.run.slow_step_causes
    assert known is not None
    assert (thread.native_id, "waits") in known.threads
    assert (thread.native_id, __file__, line, "<lambda>") in known.targets


def test_the_own_control_group_goes_first(proc: Path, tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    (groups / "job").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("1:cpu:/\n0::/job\n")
    assert pressure_file(proc, groups) == proc / "pressure" / "memory"
    own = groups / "job" / "memory.pressure"
    own.write_text("some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    assert pressure_file(proc, groups) == own
    (proc / "self" / "cgroup").unlink()
    (proc / "pressure" / "memory").unlink()
    assert pressure_file(proc, groups) is None
