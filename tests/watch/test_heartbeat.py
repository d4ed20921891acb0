# SPDX-License-Identifier: Apache-2.0
"""What `watch` says of how a recording is."""

from pathlib import Path
from typing import Any

import pytest

from pyinstrument_gpu.aspects.stalls.data import Stall
from pyinstrument_gpu.core.condition import Condition, ProcessState
from pyinstrument_gpu.parts.words import time_text
from pyinstrument_gpu.watch.heartbeat import Heartbeat
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.process import MachineClocks
from tests.helpers.run_writer import save
from tests.helpers.watched import (
    MS,
    S,
    anchor_at,
    clocks_at,
    finished,
    live,
    replace_file,
    running,
    watched,
)

RUNNING, GONE = ProcessState.ALIVE, ProcessState.GONE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.gpurun"


@pytest.mark.parametrize(
    ("later_ns", "state", "condition", "words"),
    [
        (0, RUNNING, "running", "running in backward/allreduce, step 5"),
        (1 * S, GONE, "running", "running in backward/allreduce, step 5"),
        (
            12 * S,
            GONE,
            "cut off",
            "stopped 12 s ago in backward/allreduce, step 5: its process 4242 is gone",
        ),
        (
            12 * S,
            ProcessState.ALIVE,
            "silent",
            "silent for 12 s in backward/allreduce, step 5: its process 4242 is alive, but its "
            "recorder does not write",
        ),
        (
            600 * S,
            ProcessState.STOPPED,
            "stopped",
            "silent for 10 min in backward/allreduce, step 5: its process 4242 is stopped by a "
            "signal",
        ),
        (
            12 * S,
            ProcessState.UNKNOWN,
            "lost",
            "no heartbeat for 12 s, last in backward/allreduce, step 5; whether its process "
            "lives can't be seen from here",
        ),
    ],
)
def test_on_the_same_machine(
    path: Path, later_ns: int, state: ProcessState, condition: str, words: str
) -> None:
    sign = live(running(), path, later_ns, state).heartbeat
    assert sign == Heartbeat(Condition(condition), words, later_ns, False)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "in backward/allreduce, step 5"),
        ({"open_phases": ()}, "in step 5"),
        ({"open_phases": (), "open_step": None}, "after step 4"),
        ({"open_step": None}, "in backward/allreduce, after step 4"),
    ],
)
def test_the_place(path: Path, changes: dict[str, Any], words: str) -> None:
    assert live(running(**changes), path).heartbeat.words == f"running {words}"
    nothing = running(0, open_phases=(), open_step=None)
    assert live(nothing, path).heartbeat.words == "running before the first step"


@pytest.mark.parametrize(
    ("end", "condition", "words"),
    [
        ({}, Condition.ENDED, "ended 3 min ago"),
        ({"exit_code": 0}, Condition.FINISHED, "finished 3 min ago"),
        ({"exit_code": 3}, Condition.FAILED, "failed 3 min ago"),
        ({"exception": "ValueError"}, Condition.FAILED, "failed 3 min ago: ValueError"),
    ],
)
def test_a_run_that_was_ended(
    path: Path, end: dict[str, Any], condition: Condition, words: str
) -> None:
    run = finished()
    run.environment["program_end"] = end
    sign = live(run, path, 180 * S, GONE).heartbeat
    assert sign == Heartbeat(condition, words, 180 * S, False)


def test_a_program_in_which_nothing_happens(path: Path) -> None:
    # The recorder goes on: its last heartbeat is new, and the phase that is open old.
    began_ns = 50 * MS + 20 * 100 * MS + 50 * MS
    for idle_ns, words in (
        (
            9 * S,
            "running in backward/allreduce, step 20: the step has taken 9 s so far; a step takes "
            "100 ms at the median",
        ),
        (11 * S, "nothing has happened for 11 s: in backward/allreduce, step 20"),
    ):
        now_ns = began_ns + idle_ns
        run = running(20, duration_ns=now_ns, anchor=anchor_at(now_ns))
        assert live(run, path).heartbeat.words == words
        # Whatever it does is progress, though its step does not end.
        run = running(20, duration_ns=now_ns, anchor=anchor_at(now_ns), active_ns=now_ns - 2 * S)
        assert live(run, path).heartbeat.condition is Condition.RUNNING


def test_until_some_steps_have_ended_more_time_is_given(path: Path) -> None:
    for idle_ns, condition in ((89 * S, Condition.RUNNING), (91 * S, Condition.HANGING)):
        now_ns = 50 * MS + 50 * MS + idle_ns
        run = running(0, duration_ns=now_ns, anchor=anchor_at(now_ns))
        assert live(run, path).heartbeat.condition is condition


def test_what_the_watchdog_has_seen(path: Path) -> None:
    stall = Stall(since_ns=S, noticed_ns=4 * S, limit_ns=3 * S, step=5)
    run = running(duration_ns=5 * S, anchor=anchor_at(5 * S), stalls=(stall,))
    assert live(run, path).heartbeat.words == (
        "nothing has happened for 4 s: in backward/allreduce, step 5"
    )


@pytest.mark.parametrize("host", ["elsewhere", "box"])
def test_on_another_machine_only_what_was_seen_is_said(path: Path, host: str) -> None:
    run = running()
    save(run, path)
    watching = watched(path, GONE)

    def look(run_ns: int) -> Heartbeat:
        now = clocks_at(run_ns, host)
        if host == "box":  # of the same name, but not the same: its clock began at another time
            now = MachineClocks(host, now.monotonic_ns, now.boottime_ns, now.realtime_ns + 99 * S)
        seen = watching.look(now)
        assert isinstance(seen, LiveRun)
        return seen.heartbeat

    assert look(700 * S) == Heartbeat(
        Condition.LOST,
        "last heartbeat at 2023-11-14 22:21:40 UTC by its own clock, in backward/allreduce, "
        "step 5; on another machine, so its age is unknown",
        None,
        True,
    )
    assert look(705 * S) == Heartbeat(
        Condition.LOST,
        "no heartbeat for at least 5 s, last in backward/allreduce, step 5; whether its process "
        "lives can't be seen from here",
        5 * S,
        True,
    )
    replace_file(running(6), path)
    assert look(706 * S).condition is Condition.RUNNING
    assert look(707 * S) == Heartbeat(
        Condition.RUNNING, "running in backward/allreduce, step 6", 1 * S, True
    )
    replace_file(finished(6), path)
    assert look(708 * S).words == "ended at 2023-11-14 22:21:40 UTC by its own clock"
    watching.close()


def test_a_removed_file(path: Path) -> None:
    save(running(), path)
    watching = watched(path)
    assert isinstance(watching.look(clocks_at(1 * S)), LiveRun)
    path.unlink()
    seen = watching.look(clocks_at(1 * S))
    assert isinstance(seen, LiveRun)
    assert seen.heartbeat.words.endswith("step 5 (the file has been moved or removed)")
    watching.close()


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 s"),
        (119 * S, "119 s"),
        (180 * S, "3 min"),
        (9000 * S, "2 h"),
        (1 << 60, "13344 days"),
    ],
)
def test_times(time_ns: int, text: str) -> None:
    assert time_text(time_ns) == text
