# SPDX-License-Identifier: Apache-2.0
"""A program in which nothing happens any more."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.collectives.flight_recorder import Dump, GroupStatus
from pyinstrument_gpu.aspects.collectives.watch import CollectiveWatch
from pyinstrument_gpu.aspects.stalls import watch as stall_watch
from pyinstrument_gpu.aspects.stalls.data import GroupProgress, Stall
from pyinstrument_gpu.aspects.stalls.watch import distributed_call
from pyinstrument_gpu.core.file.follower import RunFollower
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native
from tests.helpers.script import run_script

LIMIT_S = 0.2
PATIENCE_S = 600


def quick_steps(count: int = 12) -> None:
    for _ in range(count):
        with gpu_step(), gpu_phase("forward"):
            pass


def wait_for(path: Path, found: Callable[[Stall], object]) -> Stall:
    """The newest stall in the file that is being written, once it is as wanted."""
    follower = RunFollower(path)
    until_s = time.monotonic() + PATIENCE_S
    try:
        while time.monotonic() < until_s:
            stalls = Run.from_blocks(follower.look()).stalls
            if stalls and found(stalls[-1]):
                return stalls[-1]
            time.sleep(0.05)
    finally:
        follower.close()
    raise AssertionError("no such stall")


@contextmanager
def stalled_until(path: Path, found: Callable[[Stall], object]) -> Iterator[list[Stall]]:
    """Another thread looks at the file meanwhile; `go_on` of it ends the wait of this one."""
    seen: list[Stall] = []
    go_on = threading.Event()

    def look() -> None:
        try:
            seen.append(wait_for(path, found))
        finally:
            go_on.set()

    thread = threading.Thread(target=look, name="looks")
    thread.start()
    go_on.wait()
    thread.join()
    yield seen


def test_where_the_program_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path, watchdog_s=LIMIT_S) as recording:
        quick_steps()
        with (
            gpu_step(),
            gpu_phase("train"),
            gpu_phase("backward"),
            stalled_until(path, lambda stall: stall.stacks) as (seen,),
        ):
            pass
        # It goes on.
        quick_steps(1)
        wait_for(path, lambda stall: stall.ended_ns is not None)
    (stall,) = recording.run.stalls
    assert stall.step == seen.step == 12
    assert stall.paths == ((0, "train/backward"),)
    assert stall.limit_ns >= LIMIT_S * 1e9
    assert stall.noticed_ns - stall.since_ns >= LIMIT_S * 1e9
    assert stall.ended_ns is not None and stall.ended_ns >= stall.noticed_ns
    stacks = dict(stall.stacks)
    first, *rest = stacks["MainThread"].splitlines()
    assert first.endswith(", in wait") and 'threading.py"' in first
    assert any(f'"{__file__}"' in line and "in stalled_until" in line for line in rest)
    assert "looks" in stacks
    error = capsys.readouterr().err
    assert error.count("nothing has happened for ") == 1
    assert "): in train/backward, step 12; the main thread is at file " in error
    assert error.endswith("\n")


def test_a_recording_may_be_stopped_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    recording = pig.start(path, watchdog_s=LIMIT_S)
    quick_steps()
    with gpu_step(), stalled_until(path, lambda stall: stall.stacks):
        run = recording.stop()
    (stall,) = run.stalls
    assert (stall.step, stall.ended_ns) == (12, None)


def test_between_steps(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path, watchdog_s=LIMIT_S):
        quick_steps()
        with stalled_until(path, lambda stall: stall.stacks) as (seen,):
            pass
    assert (seen.step, seen.paths) == (-1, ())


def test_how_far_the_groups_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path, watchdog_s=LIMIT_S) as recording:
        from tests.aspects.collectives.test_flight_recorder import made_now

        dump = Dump(made_now(recording, 4), {"0": GroupStatus(5, None, 4)})
        recording.watchers["collectives"] = watch = CollectiveWatch(lambda: dump)
        watch.begin(recording)
        watch.has_ranks(recording._environment["anchor"], lambda name: (0, 1))
        quick_steps()
        with gpu_step(), stalled_until(path, lambda stall: stall.groups) as (seen,):
            pass
    assert seen.groups == (GroupProgress("0", 5, None, 4, "all_reduce"),)
    last = "the last collective operation asked for in group 0 is number 5 (all_reduce)"
    assert f"{last}, the last one that ended 4\n" in capsys.readouterr().err


def test_a_rank_says_which_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pig.record(tmp_path / "a.gpurun", watchdog_s=LIMIT_S):
        quick_steps()
        with gpu_step(), stalled_until(tmp_path / "a.rank3.gpurun", lambda stall: stall.stacks):
            pass
    assert capsys.readouterr().err.startswith("pyinstrument_gpu: rank 3: nothing has happened")


@pytest.mark.parametrize("watchdog_s", [None, 1000.0])
def test_without_a_stall_nothing_is_said(
    watchdog_s: float | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pig.record(watchdog_s=watchdog_s) as recording:
        quick_steps()
    assert recording.run.stalls == ()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "30", True])
def test_a_limit_has_to_be_a_number_of_seconds(wrong: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="watchdog_s"):
        pig.record(watchdog_s=wrong)


HOLDS_THE_GIL = """
import ctypes, sys, threading, time
from pathlib import Path
import pyinstrument_gpu as pig

path = Path(sys.argv[1])
with pig.record(path, watchdog_s=0.2):
    for _ in range(12):
        with pig.gpu_step():
            pass
    with pig.gpu_step(), pig.gpu_phase("forward"):
        ctypes.PyDLL(None).sleep(12)  # with the GIL
"""


@pytest.mark.slow
def test_a_thread_that_holds_the_gil_in_c(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    done = run_script(HOLDS_THE_GIL, path)
    (stall,) = Run.load(path).stalls
    lines = HOLDS_THE_GIL.splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if "sleep" in text)
    said = done.stderr.splitlines()
    assert len(said) == 1
    assert "): in forward, step 12; a thread has held Python's GIL for 5 s" in said[0]
    assert stall.step == 12
    if sys.version_info[:2] in ((3, 11), (3, 12)):  # which export what prints the stacks
        assert any(f'File "<string>", line {line} in <module>' in text for _, text in stall.stacks)
    else:
        assert stall.stacks == ()


FORKED = """
import os, sys, threading, time
from pathlib import Path
import pyinstrument_gpu as pig
from tests.aspects.stalls.test_watchdog import quick_steps, stalled_until, LIMIT_S

path = Path(sys.argv[1])
with pig.record(path, watchdog_s=LIMIT_S) as recording:
    quick_steps()
    with pig.gpu_step(), stalled_until(path, lambda stall: stall.stacks):
        child = os.fork()
        if child == 0:
            own = pig.start(f"{path}.child", watchdog_s=LIMIT_S)
            quick_steps()
            with pig.gpu_step(), stalled_until(f"{path}.child", lambda stall: stall.stacks):
                pass
            assert len(own.stop().stalls) == 1
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
assert len(recording.run.stalls) == 1
"""


def test_a_forked_child_has_a_watchdog_of_its_own(tmp_path: Path) -> None:
    done = run_script(FORKED, tmp_path / "a.gpurun")
    assert done.stderr.count("nothing has happened for ") == 2


def test_stacks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def deep(calls: int) -> list[tuple[str, str]]:
        return deep(calls - 1) if calls else stall_watch.thread_stacks()

    ((name, text), *_) = deep(100)
    lines = text.splitlines()
    assert name == "MainThread"
    assert len(lines) == stall_watch.MOST_FRAMES + 1
    assert lines[-1] == "..."
    monkeypatch.setattr(stall_watch, "MOST_CHARACTERS", 50)
    assert sum(len(text) for _, text in stall_watch.thread_stacks()) <= 50
    left = stall_watch.thread_stacks({threading.get_ident()})
    assert "MainThread" not in dict(left)


def test_a_stack_ends_where_run_has_started_the_program() -> None:
    launcher: dict[str, Any] = {}
    code = "def run(program):\n    return program()"
    exec(compile(code, stall_watch.LAUNCHER, "exec"), launcher)
    assert Path(stall_watch.LAUNCHER).is_file()
    ((_, text), *_) = launcher["run"](lambda: stall_watch.thread_stacks())
    assert text.splitlines()[-1].endswith("in <lambda>")


def test_a_stack_that_changes_is_progress(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = [sys._getframe(0)] * 4 + [sys._getframe(1)]
    withdrawn: list[int] = []
    monkeypatch.setattr(stall_watch, "_main_frame", lambda: frames.pop(0))
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(native, "newest_stall", lambda: (7, "it stands"))
    monkeypatch.setattr(native, "withdraw_stall", withdrawn.append)
    with pig.record() as recording:
        recording.watchers["stalls"].stalled()
    assert (withdrawn, frames) == ([7], [])
    assert capsys.readouterr().err == ""


def test_where_a_thread_waits_for_other_ranks(tmp_path: Path) -> None:
    folder = tmp_path / "torch" / "distributed"
    frames: list[FrameType] = []

    def function(file: str, source: str) -> Any:
        names: dict[str, Any] = {"look": lambda: frames.append(sys._getframe(1))}
        exec(compile(source, file, "exec"), names)
        return names["function"]

    recv = function(f"{folder}/distributed_c10d.py", "def function(src, then): then()")
    recv.__code__ = recv.__code__.replace(co_name="recv")
    logged = function(f"{folder}/c10d_logger.py", "def function(call, *given): call(*given)")
    look = function(f"{folder}/rendezvous.py", "def function(): look()")
    logged(recv, 3, look)
    assert distributed_call(frames.pop()) == ("recv", 3)
    logged(look)
    assert distributed_call(frames.pop()) == ("function", None)
    # What it calls of the program's is not its own.
    recv(3, lambda: frames.append(sys._getframe()))
    assert distributed_call(frames.pop()) is None
    assert distributed_call(None) is None
