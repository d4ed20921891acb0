# SPDX-License-Identifier: Apache-2.0
"""What /proc says, and what it hides."""

import os
import subprocess
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.watch.process import (
    MachineClocks,
    children,
    process_state,
    recorded_files,
)

TICK = os.sysconf("SC_CLK_TCK")
CLOCKS = MachineClocks("box", monotonic_ns=1000 * 10**9, boottime_ns=1500 * 10**9, realtime_ns=0)
"""The machine has slept for 500 s."""


def proc_with(folder: Path, pid: int, state: str = "S", began_s: int = 600) -> Path:
    """A /proc with a process that began so long after the boot."""
    for number in (1, pid):
        (folder / str(number)).mkdir(exist_ok=True)
    fields = [state, "1", *["0"] * 17, str(began_s * TICK), "0"]
    (folder / str(pid) / "stat").write_text(f"{pid} (a ) b (c) {' '.join(fields)}\n")
    return folder


@pytest.mark.parametrize(
    ("letter", "state"),
    [
        *(("R", "alive"), ("S", "alive"), ("D", "alive"), ("T", "stopped"), ("t", "stopped")),
        *(("Z", "gone"), ("X", "gone")),
    ],
)
def test_states(tmp_path: Path, letter: str, state: str) -> None:
    proc = proc_with(tmp_path, 42, letter)
    assert process_state(42, 100 * 10**9, CLOCKS, proc) == ProcessState(state)


def test_a_number_that_another_process_has_by_now(tmp_path: Path) -> None:
    proc = proc_with(tmp_path, 42, began_s=602)
    assert process_state(42, 100 * 10**9, CLOCKS, proc).name == "ALIVE"
    proc = proc_with(tmp_path, 42, began_s=603)
    assert process_state(42, 100 * 10**9, CLOCKS, proc).name == "GONE"


def test_where_processes_of_others_are_hidden_nothing_is_said(tmp_path: Path) -> None:
    assert process_state(42, 0, CLOCKS, tmp_path) == ProcessState.UNKNOWN
    assert process_state(43, 0, CLOCKS, proc_with(tmp_path, 42)) == ProcessState.GONE
    (tmp_path / "42" / "stat").write_text("nonsense")
    assert process_state(42, 0, CLOCKS, tmp_path) == ProcessState.UNKNOWN


def test_the_files_of_this_process(tmp_path: Path) -> None:
    path = tmp_path / "train"
    with pig.record(path), open(path, "rb"):
        assert recorded_files(os.getpid()) == ([path], False)
        assert (
            process_state(os.getpid(), MachineClocks.now().monotonic_ns, MachineClocks.now()).name
            == "ALIVE"
        )
        with open(path, "rb"):
            child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        try:
            assert recorded_files(child.pid) == ([], False)
            assert child.pid in children(os.getpid())
        finally:
            child.communicate()
    assert process_state(child.pid, 0, MachineClocks.now()).name == "GONE"
    with pig.record():
        assert recorded_files(os.getpid()) == ([], True)
    with pytest.raises(FileNotFoundError):
        recorded_files(child.pid)
