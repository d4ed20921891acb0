# SPDX-License-Identifier: Apache-2.0
"""`stop()` reads nothing back: the run is read when something of it is first asked for."""

from __future__ import annotations

import copy
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file.blocks import Blocks
from pyinstrument_gpu.core.file.reader import decode_blocks
from pyinstrument_gpu.core.run import Run

STEPS = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.gpurun"


def stopped(path: Path | None) -> Run:
    recording = pig.start(path)
    for _ in pig.gpu_steps(range(STEPS)):
        with pig.gpu_phase("forward"):
            pass
    return recording.stop()


def open_at(path: Path) -> list[int]:
    """The descriptors of this process that lead to a file."""
    folder = Path("/proc/self/fd")
    links = {one.name: one for one in folder.iterdir()}
    return [int(name) for name, link in links.items() if link.exists() and link.samefile(path)]


def test_stop_does_not_read_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []

    def noted(blocks: Blocks) -> dict[str, Any]:
        reads.append(blocks)
        return decode_blocks(blocks)

    monkeypatch.setattr("pyinstrument_gpu.core.file.reader.decode_blocks", noted)

    run = stopped(path)

    assert not reads
    assert (run.step_totals.count, len(run.steps), run.notes) == (STEPS, STEPS, ())
    assert run.phases["forward"].count == STEPS
    assert len(reads) == 1


def test_in_memory_nothing_is_read_either(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "from_bytes", None)
        recording = pig.start()
        with pig.gpu_phase("forward"):
            pass
        patch.undo()
        assert recording.stop().phases["forward"].count == 1


@pytest.mark.parametrize("change", [os.remove, lambda path: os.rename(path, f"{path}.old")])
def test_the_file_may_be_moved_or_removed_before(path: Path, change: object) -> None:
    run = stopped(path)
    assert callable(change)
    change(path)

    assert (len(run.steps), run.notes) == (STEPS, ())


def test_its_descriptor_may_have_become_one_of_the_program(path: Path, tmp_path: Path) -> None:
    run = stopped(path)
    (number,) = open_at(path)
    os.close(number)
    mine = os.open(tmp_path / "mine.txt", os.O_WRONLY | os.O_CREAT)
    assert mine == number

    assert (len(run.steps), run.notes) == (STEPS, ())  # by its name
    assert os.write(number, b"still open") == len(b"still open")
    os.close(number)


def test_a_file_that_is_neither_open_nor_there_is_told(path: Path) -> None:
    run = stopped(path)
    (number,) = open_at(path)
    os.close(number)
    path.unlink()

    with pytest.warns(RuntimeWarning, match="No such file"):
        assert run.phases["forward"].count == STEPS
    assert not len(run.steps.closed)


def test_unread_runs_leave_the_program_its_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))

    runs = [stopped(tmp_path / f"{number}.gpurun") for number in range(40)]

    assert len(os.listdir("/proc/self/fd")) - before <= 16
    assert [(len(run.steps), run.notes) for run in runs] == [(STEPS, ())] * len(runs)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_copies_and_pickles_have_what_was_recorded(path: Path) -> None:
    run = stopped(path)
    for made in (copy.copy(run), pickle.loads(pickle.dumps(run))):
        assert made.phases["forward"].count == STEPS
        assert len(made.steps) == STEPS


def test_an_unknown_attribute_is_an_error(path: Path) -> None:
    run = stopped(path)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = run.nothing  # type: ignore[attr-defined]
