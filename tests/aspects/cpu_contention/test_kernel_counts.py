# SPDX-License-Identifier: Apache-2.0
"""What is read of processors, from made files of a kernel."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pyinstrument_gpu.aspects.cpu_contention import kernel_counts
from pyinstrument_gpu.aspects.cpu_contention.kernel_counts import (
    busy_ns,
    known,
    own_ns,
    pressure_ns,
    started_ns,
    thread_waits,
    throttled_ns,
)

ALL = (busy_ns, own_ns, started_ns, pressure_ns, throttled_ns, thread_waits)
V1 = "nr_periods 10\nnr_throttled 4\nthrottled_time {}000\n"
V2 = "usage_usec 9\nnr_periods 10\nnr_throttled 4\nthrottled_usec {}\n"


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `/proc` in which ticks are of 10 ms, and the process may use the processors 1 and 2."""
    monkeypatch.setattr(os, "sysconf", {"SC_CLK_TCK": 100}.__getitem__)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 2})
    return tmp_path / "proc"


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_others_used_is_of_the_processors_that_the_process_may_use(proc: Path) -> None:
    rows = ["cpu 9 9 9 9 9 9 9 9 9 9", "cpu0 500 0 0 7 7 0 0 0 0 0"]
    rows += [f"cpu{number} 10 20 30 999 999 1 2 {number} 50 50" for number in (1, 2, 3)]
    put(proc / "stat", "\n".join([*rows, "intr 1 2 3"]))
    # user, nice, system, interrupts of both kinds, and what the host of a virtual machine took
    assert busy_ns(proc) == (2 * 63 + 1 + 2) * 10_000_000


def test_own_use_has_that_of_what_the_process_started(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "times", lambda: os.times_result((1.0, 0.5, 0.25, 0.125, 9.0)))
    put(proc / "self" / "task" / "7" / "children", "11 12 ")
    put(proc / "self" / "task" / "8" / "children", "")
    for pid, children in ((11, "13"), (12, ""), (13, "")):
        put(proc / str(pid) / "task" / str(pid) / "children", children)
        name = "a) worker (1"
        put(proc / str(pid) / "stat", f"{pid} ({name}) S 1 2 3 4 5 6 7 8 9 10 1 2 3 {pid} 20 0")
    started = 375_000_000 + (3 * (1 + 2 + 3) + 11 + 12 + 13) * 10_000_000
    assert started_ns(proc) == started
    assert own_ns(proc) == 1_500_000_000 + started


def test_pressure_and_the_waits_of_threads(proc: Path) -> None:
    put(proc / "pressure" / "cpu", "some avg10=8.76 avg60=4.87 total=1835\nfull total=3\n")
    assert pressure_ns(proc) == 1_835_000
    for number, (name, text) in {
        os.getpid(): ("python", "5 300 2"),
        77: ("omp worker", "9 700 1"),
        78: ("pig-harvester", "9 900 1"),
        79: ("uncounted", "0 0 0"),
    }.items():
        put(proc / "self" / "task" / str(number) / "schedstat", text)
        put(proc / "self" / "task" / str(number) / "comm", f"{name}\n")
    assert thread_waits(proc) == {os.getpid(): ("the main thread", 300), 77: ("omp worker", 700)}


@pytest.mark.parametrize(
    ("own", "mount", "stats", "throttled_us"),
    [
        pytest.param(
            "9:cpuset:/\n4:cpu,cpuacct:/box/job\n0::/other",
            "33 24 0:29 / {} rw - cgroup cgroup rw,cpu,cpuacct",
            {"box/job": V1.format(7), "box": V1.format(5), ".": V1.format(0), "other": "1"},
            12,
            id="v1, with the groups around",
        ),
        pytest.param(
            "0::/box",
            "33 24 0:29 / {} rw shared:4 - cgroup2 cgroup2 rw",
            {"box": V2.format(30), ".": "usage_usec 4\n"},
            30,
            id="v2",
        ),
        pytest.param(
            "0::/",
            "33 24 0:29 / {} ro - cgroup2 cgroup rw,nsdelegate",
            {".": V2.format(8)},
            8,
            id="v2, a namespace of its own",
        ),
        pytest.param(
            "4:cpu:/docker/1a2b",
            "33 24 0:29 /docker/1a2b {} ro - cgroup cgroup rw,cpu",
            {".": V1.format(9)},
            9,
            id="v1, a container without a namespace",
        ),
        pytest.param(
            "0::/../../elsewhere",
            "33 24 0:29 / {} ro - cgroup2 cgroup rw",
            {".": V2.format(3)},
            3,
            id="a path of another namespace",
        ),
    ],
)
def test_throttling(
    own: str, mount: str, stats: dict[str, str], throttled_us: int, proc: Path, tmp_path: Path
) -> None:
    place = tmp_path / "a mount"
    others = (
        "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs rw\n40 23 0:2 / /x rw - cgroup c rw,cpuset"
    )
    put(proc / "self" / "cgroup", own + "\n")
    put(
        proc / "self" / "mountinfo",
        f"{others}\n{mount.format(str(place).replace(' ', chr(92) + '040'))}\n",
    )
    for folder, text in stats.items():
        put(place / folder / "cpu.stat", text)
    assert throttled_ns(proc) == 1000 * throttled_us


@pytest.mark.parametrize("read", ALL)
def test_what_is_hidden_is_unknown(read: Callable[[Path], object], proc: Path) -> None:
    assert known(read, proc) is None
    files = ("stat", "pressure/cpu", "self/cgroup", "self/mountinfo", "self/task/7/schedstat")
    put(proc / "self/task/7/children", "12")
    for text in ("", "nonsense", "1 2"):
        for file in files:
            put(proc / file, text)
        assert known(read, proc) is None


def test_a_group_that_says_nothing_of_a_limit_is_unknown(proc: Path, tmp_path: Path) -> None:
    put(proc / "self" / "cgroup", "0::/\n")
    put(proc / "self" / "mountinfo", f"33 24 0:29 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert known(kernel_counts.throttled_ns, proc) is None
    put(tmp_path / "cpu.stat", "usage_usec 4\n")
    assert known(kernel_counts.throttled_ns, proc) is None
