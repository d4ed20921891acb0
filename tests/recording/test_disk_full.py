# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up ends the history in the run file, and nothing else."""

import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from tests.helpers.child import start_child
from tests.helpers.digits_training import train_with_full_disk
from tests.helpers.disk_full import SPANS_OF_CHILD, STEPS, record_with_full_disk
from tests.helpers.script import run_script

PROGRAM = "from tests.helpers.disk_full import main; main()"
MAX_FILE_BYTES = 1 << 20

# Only a child that hangs takes as long.
HANGS_AFTER_S = 600


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={MAX_FILE_BYTES}", "tmpfs", os.fspath(mount_point)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting needs root: {mounted.stderr.strip()}")
    yield mount_point
    subprocess.run(["umount", os.fspath(mount_point)], check=True)


def test_file_size_limit(tmp_path: Path) -> None:
    assert_history_ends(errno.EFBIG, tmp_path, "--max-file-bytes", MAX_FILE_BYTES)


def test_full_tmpfs(small_disk: Path) -> None:
    assert_history_ends(errno.ENOSPC, small_disk)


def assert_history_ends(error: int, directory: Path, *options: object) -> None:
    """Runs a program whose run file ends with an error."""
    done = run_script(
        "import warnings; warnings.simplefilter('always'); " + PROGRAM,
        directory / "run.gpurun",
        *options,
    )

    # One warning, on whatever line the training was.
    assert done.stderr.count("Warning") == 1
    assert f"RuntimeWarning: the run file can no longer be written ({os.strerror(error)})" in (
        done.stderr
    )
    facts = json.loads(done.stdout)
    # What is kept in memory is whole.
    assert facts["complete"]
    assert facts["counts"] == {"forward": STEPS, "forward/attention": STEPS}
    assert facts["snapshot_counts"] == facts["counts"]
    assert facts["phases_recorded"] == 2 * STEPS
    assert facts["steps"] == STEPS
    assert facts["samples"] == 2 * STEPS
    # What was written stands, and the rest is counted.
    assert 1000 < facts["retained"] < MAX_FILE_BYTES // 40
    assert facts["steps_retained"] < STEPS
    dropped = facts["dropped"]
    assert dropped.keys() <= {"disk_error", "ring_full"}
    assert facts["retained"] + dropped["disk_error"] + dropped.get("ring_full", 0) == 2 * STEPS
    why = f"the history ends early: {os.strerror(error)}"
    assert why in facts["notes"]
    assert why in facts["loaded_notes"]
    assert why in " ".join(facts["report"].split())


@pytest.mark.parametrize("max_file_kib", range(68, 196, 16))
def test_says_so_wherever_the_disk_gets_full(tmp_path: Path, max_file_kib: int) -> None:
    child = start_child(record_with_full_disk, tmp_path / "run.gpurun", max_file_kib * 1024)
    child.join(HANGS_AFTER_S)

    assert child.exitcode == 0
    run = pig.Run.load(tmp_path / "run.gpurun")
    assert f"the history ends early: {os.strerror(errno.EFBIG)}" in run.notes
    assert len(run.spans) < run.phases_recorded == SPANS_OF_CHILD


def test_no_room_for_a_run_file(tmp_path: Path) -> None:
    done = run_script(PROGRAM, tmp_path / "run.gpurun", "--max-file-bytes", 67 * 1024, exit_code=1)

    assert "can't write the run file" in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr


def test_warnings_as_errors_do_not_end_the_training(tmp_path: Path) -> None:
    done = run_script(
        "import warnings; warnings.simplefilter('error'); " + PROGRAM,
        tmp_path / "run.gpurun",
        "--max-file-bytes",
        MAX_FILE_BYTES,
    )

    assert "can no longer be written" in done.stderr
    assert json.loads(done.stdout)["phases_recorded"] == 2 * STEPS


def test_training_ends_normally(tmp_path: Path) -> None:
    child = start_child(train_with_full_disk, tmp_path / "run.gpurun", 160 * 1024)
    child.join(HANGS_AFTER_S)

    assert child.exitcode == 0
    run = pig.Run.load(tmp_path / "run.gpurun")
    assert f"the history ends early: {os.strerror(errno.EFBIG)}" in run.notes
    assert 0 < len(run.spans) < run.phases_recorded
