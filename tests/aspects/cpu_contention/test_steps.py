# SPDX-License-Identifier: Apache-2.0
"""The waits of steps for a processor, from a made file of the kernel and by a clock that stands
still: so every step is read."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.aspects.cpu_contention.aspect import CpuContentionAspect
from pyinstrument_gpu.aspects.cpu_contention.data import THROTTLED_KIND
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import metrics_by_name
from tests.helpers.clock import fake_clock

MS = 1_000_000


@pytest.fixture
def schedstat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYINSTRUMENT_GPU_PROC", str(tmp_path))
    path = tmp_path / "thread-self" / "schedstat"
    path.parent.mkdir()
    path.write_text("5000 100 1\n")
    return path


@pytest.fixture
def advance() -> Iterator[Callable[[int], None]]:
    with fake_clock() as advance:
        yield advance


def waits_of(run: Run) -> dict[int, float]:
    """By step how long its thread waited."""
    for name, readings in metrics_by_name(run.metric_names, run.metrics):
        if name == READING:
            return dict(readings[["step", "value"]].tolist())
    return {}


def test_each_step_has_what_its_thread_waited_in_it(
    schedstat: Path, advance: Callable[[int], None]
) -> None:
    with pig.record() as recording:
        for waited_ns in (100, 350, 360, 90_350):
            with pig.gpu_step():
                advance(MS)
                schedstat.write_text(f"7000 {waited_ns} 1\n")
            advance(MS)
            schedstat.write_text(f"7000 {waited_ns + 10} 1\n")  # between steps
        with pig.gpu_step():
            advance(MS)
        schedstat.write_text("7000 90400 1\n")
        with pig.gpu_step():  # it follows at once, and begins with what the last one ended with
            schedstat.write_text("7000 90410 1\n")
    run = recording.run
    assert waits_of(run) == {0: 0, 1: 240, 2: 0, 3: 89_980, 4: 0, 5: 50}
    assert str(schedstat) not in _descriptors().values()


def test_waits_of_long_steps_stay_known_in_a_long_run_and_count_once(
    schedstat: Path, advance: Callable[[int], None]
) -> None:
    long_ones = [500, 20_000, 20_101]  # by then every second step has a reading
    waited_ns = 100
    with pig.record() as recording:
        for step in range(20_110):
            with pig.gpu_step():
                advance(MS)
                if step in long_ones:
                    advance(9 * MS)
                    waited_ns += 5 * MS
                    schedstat.write_text(f"7000 {waited_ns} 1\n")
    assert len(waits_of(recording.run)) < 20_000
    (cause,) = CpuContentionAspect().causes(recording.run)
    steps = cause.amounts["step"].tolist()
    assert len(steps) == len(set(steps))
    found = dict(cause.amounts.tolist())
    assert {step: found[step] for step in long_ones} == dict.fromkeys(long_ones, 5 * MS)


@pytest.mark.parametrize("text", ["", "0 0 0\n", "nonsense", "7"])
def test_a_kernel_that_does_not_count_says_nothing(text: str, schedstat: Path) -> None:
    schedstat.write_text(text)
    with pig.record() as recording, pig.gpu_step():
        pass
    assert waits_of(recording.run) == {}


def test_a_file_that_is_not_there_says_nothing(schedstat: Path) -> None:
    schedstat.unlink()
    with pig.record() as recording, pig.gpu_step():
        pass
    assert waits_of(recording.run) == {}


def test_a_step_that_ends_on_another_thread_is_unknown(
    schedstat: Path, advance: Callable[[int], None]
) -> None:
    with pig.record() as recording:
        step = pig.gpu_step()
        step.__enter__()
        other = threading.Thread(target=step.__exit__, args=(None, None, None))
        other.start()
        other.join()
        advance(MS)
        with pig.gpu_step():
            schedstat.write_text("7000 170 1\n")
    assert waits_of(recording.run) == {1: 70}


def test_threads_let_go_of_their_files(schedstat: Path, advance: Callable[[int], None]) -> None:
    def one_step() -> None:
        with pig.gpu_step():
            advance(MS)

    with pig.record() as recording:
        for _ in range(40):  # more than have a file at one time
            thread = threading.Thread(target=one_step)
            thread.start()
            thread.join()
    assert waits_of(recording.run) == dict.fromkeys(range(40), 0)


def test_a_descriptor_that_the_program_took_is_neither_read_nor_closed(
    schedstat: Path, tmp_path: Path, advance: Callable[[int], None]
) -> None:
    own = tmp_path / "own"
    own.write_text("9000 999999 1\n")
    with pig.record() as recording:
        with pig.gpu_step():
            advance(MS)
        [number] = [fd for fd, path in _descriptors().items() if path == str(schedstat)]
        taken = os.open(own, os.O_RDONLY)
        os.dup2(taken, number)
        for _ in range(2):
            with pig.gpu_step():
                advance(MS)
    assert waits_of(recording.run) == {0: 0}
    assert os.read(number, 4) == b"9000"
    os.close(number)
    os.close(taken)


def test_a_forked_child_reads_its_own(schedstat: Path, advance: Callable[[int], None]) -> None:
    with pig.record():
        with pig.gpu_step():
            advance(MS)
        child = os.fork()
        if child == 0:
            is_right = str(schedstat) not in _descriptors().values()
            with pig.record() as recording, pig.gpu_step():
                advance(MS)
                schedstat.write_text("7000 123 1\n")
            os._exit(0 if is_right and waits_of(recording.run) == {0: 23} else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_a_limit_takes_is_a_part_of_the_wait(
    schedstat: Path, tmp_path: Path, advance: Callable[[int], None]
) -> None:
    stat = tmp_path / "group" / "cpu.stat"
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    mount = f"30 24 0:26 / {stat.parent} rw - cgroup2 cgroup2 rw\n"
    (tmp_path / "self" / "mountinfo").write_text(mount)
    stat.parent.mkdir()
    stat.write_text("throttled_usec 5\n")
    with pig.record() as recording:
        for _ in range(40):
            with pig.gpu_step():
                advance(MS)
        stat.write_text("throttled_usec 2005\n")
        with pig.gpu_step():
            advance(9 * MS)
            schedstat.write_text(f"7000 {100 + 4 * MS} 1\n")
    found = recording.run.noted_causes
    assert found.of_kind(THROTTLED_KIND)[1].tolist() == [(40, 2 * MS)]
    causes = {one.name: one for one in CpuContentionAspect().causes(recording.run)}
    assert causes["throttled"].amounts.tolist() == [(40, 2 * MS)]
    assert causes["processor_wait"].amounts[-1].tolist() == (40, 2 * MS)


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # that of the listing
            continue
    return found
