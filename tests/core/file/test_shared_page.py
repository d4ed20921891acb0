# SPDX-License-Identifier: Apache-2.0
"""What a page of shared memory tells of the last steps of a process that was killed."""

from __future__ import annotations

import fcntl
import os
import signal
from pathlib import Path

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file import shared_page
from pyinstrument_gpu.core.file.items import STEP_ITEM
from pyinstrument_gpu.core.file.shared_page import MOST_STEPS, keep_last_steps, last_steps
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.goodput.run_times import run_times
from tests.goodput.lives import GONE
from tests.helpers.child import start_child
from tests.helpers.encoders import pack_file_header
from tests.helpers.killed_programs import STEPS_BEFORE_END, end_after_steps

RUN_ID = "00000000000000ff"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the pages are."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(shared_page, "FOLDER", str(folder))
    return folder


def header_of(run_id: str) -> bytes:
    return pack_file_header(int(run_id, 16))


def made_page(folder: Path, path: Path, count: int) -> Path:
    """The page of a process after so many steps."""
    slots = MOST_STEPS + 1
    steps = np.zeros(slots, STEP_ITEM)
    newest = np.arange(max(0, count - slots), count)
    steps["serial"][newest % slots] = newest
    page = folder / f"pyinstrument-gpu-{RUN_ID}"
    header = shared_page._HEADER.pack(int(RUN_ID, 16), count, bytes(path))
    page.write_bytes(header + steps.tobytes())
    return page


def serials(data: bytes | None) -> list[int] | None:
    return None if data is None else np.frombuffer(data, STEP_ITEM)["serial"].tolist()


def test_a_killed_process_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.gpurun"
    child = start_child(end_after_steps, path)
    child.join()
    assert child.exitcode == -signal.SIGKILL
    run = Run.load(path)
    left = last_steps(path)
    assert serials(left) == list(range(STEPS_BEFORE_END))
    assert run_times(run, GONE, left).has_all_steps
    steps = run_times(run, GONE, left).steps
    assert steps["index"].tolist() == list(range(STEPS_BEFORE_END))
    assert (steps["begin_ns"][1:] >= steps["end_ns"][:-1]).all()
    assert (steps["end_ns"] >= steps["begin_ns"]).all() and steps["complete"].all()
    later = np.zeros(MOST_STEPS, STEP_ITEM)
    later["end_ns"] = run.duration_ns + 1 + np.arange(MOST_STEPS)
    assert not run_times(run, GONE, later.tobytes()).has_all_steps
    keep_last_steps()  # if the next recording of another test has not
    monkeypatch.setattr(shared_page, "FOLDER", str(tmp_path))
    assert last_steps(path) == left


def test_a_recording_that_is_stopped_leaves_no_page(tmp_path: Path) -> None:
    path = tmp_path / "run.gpurun"
    with pig.record(path) as recording:
        page = Path("/dev/shm", f"pyinstrument-gpu-{recording._environment['run_id']}")
        child = os.fork()
        if child == 0:
            os._exit("pyinstrument-gpu-" in Path("/proc/self/maps").read_text())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        keep_last_steps()
        assert page.exists()
        assert last_steps(path) is None  # it lives
    assert not page.exists()


@pytest.mark.parametrize(
    "count", [0, 3, MOST_STEPS - 1, MOST_STEPS, MOST_STEPS + 1, MOST_STEPS + 4]
)
def test_steps_of_a_page(tmp_path: Path, folder: Path, count: int) -> None:
    path = tmp_path / "run.gpurun"
    path.write_bytes(header_of(RUN_ID))
    assert last_steps(path) is None
    page = made_page(folder, path, count)
    for _ in range(2):
        assert serials(last_steps(path)) == [*range(count)][-MOST_STEPS:]
        keep_last_steps()
        assert not page.exists()
    path.write_bytes(header_of("f" * 16))  # a run that has taken the name
    assert last_steps(path) is None


def test_pages_of_processes_that_live_are_left_alone(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "run.gpurun"
    path.write_bytes(header_of(RUN_ID))
    page = made_page(folder, path, 3)
    with page.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        keep_last_steps()
        assert page.exists() and last_steps(path) is None
    assert serials(last_steps(path)) == [0, 1, 2]


def test_pages_whose_run_is_gone_are_removed(tmp_path: Path, folder: Path) -> None:
    made_page(folder, tmp_path / "gone.gpurun", 3)
    (folder / "pyinstrument-gpu-2").write_bytes(b"cut")
    os.utime(folder / "pyinstrument-gpu-2", (0, 0))
    (folder / "other").write_bytes(b"not ours")
    keep_last_steps()
    assert [one.name for one in folder.iterdir()] == ["other"]
    assert [one.name for one in tmp_path.iterdir()] == ["shm"]


def test_a_page_that_can_not_be_put_beside_its_run_stays(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "run.gpurun"
    path.write_bytes(header_of(RUN_ID))
    page = made_page(folder, path, 3)
    (tmp_path / "run.gpurun.last_steps").mkdir()
    keep_last_steps()
    assert page.exists()
    assert serials(last_steps(path)) == [0, 1, 2]


def test_a_recording_that_begins_keeps_its_page(folder: Path) -> None:
    page = folder / "pyinstrument-gpu-2"
    page.touch()
    keep_last_steps()
    assert page.exists()


def test_what_others_have_put_there_is_no_page(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "run.gpurun"
    path.write_bytes(header_of(RUN_ID))
    elsewhere = made_page(folder, path, 3).rename(tmp_path / "elsewhere")
    page = folder / f"pyinstrument-gpu-{RUN_ID}"
    os.mkfifo(page)
    assert last_steps(path) is None  # and nobody waits for a writer
    page.unlink()
    page.symlink_to(elsewhere)
    assert last_steps(path) is None


def test_a_link_beside_a_run_is_never_written_through(tmp_path: Path, folder: Path) -> None:
    path, precious = tmp_path / "run.gpurun", tmp_path / "precious"
    path.write_bytes(header_of(RUN_ID))
    precious.write_text("precious")
    for name in (".last_steps", ".last_steps.new"):
        Path(f"{path}{name}").symlink_to(precious)
    page = made_page(folder, path, 3)
    keep_last_steps()
    assert not page.exists()
    assert precious.read_text() == "precious"
    assert serials(last_steps(path)) == [0, 1, 2]
