# SPDX-License-Identifier: Apache-2.0
"""A disk that fills up ends the history in the run file, and nothing else."""

import contextlib
import errno
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from tests.faults.fault import FaultGroup, Trial
from tests.helpers.child import start_child
from tests.helpers.disk_full import (
    SPANS_OF_CHILD,
    STEPS,
    record_and_tell,
    record_with_full_disk,
)

FAULTS = FaultGroup("full disk")

MAX_FILE_BYTES = 1 << 20

# Only a child that hangs takes as long.
HANGS_AFTER_S = 600


ENDS_HISTORY = (
    "There is one warning with the system's reason, the training goes on, and all statistics are "
    "complete. The file holds what was written, and each span that it lacks is counted."
)


@FAULTS.fault(done="The disk is full: a file system of 1 MiB.", holds=ENDS_HISTORY)
def full_file_system(trial: Trial) -> None:
    with small_disk(trial.directory) as disk:
        assert_history_ends(trial, errno.ENOSPC, disk / "run.gpurun", None)


@FAULTS.fault(done="The run file reaches the limit for files, `RLIMIT_FSIZE`.", holds=ENDS_HISTORY)
def file_size_limit(trial: Trial) -> None:
    assert_history_ends(trial, errno.EFBIG, trial.path, MAX_FILE_BYTES)


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    mount_point = directory / "disk"
    mount_point.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={MAX_FILE_BYTES}", "tmpfs", os.fspath(mount_point)]
    mounted = subprocess.run(["mount", *options], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"mounting needs root: {mounted.stderr.strip()}")
    try:
        yield mount_point
    finally:
        subprocess.run(["umount", os.fspath(mount_point)], check=True)


def told_by_child(
    trial: Trial,
    path: Path,
    max_file_bytes: int | None = MAX_FILE_BYTES,
    action: str = "always",
    exit_code: int = 0,
) -> str:
    """What a process prints whose run file ends; it leaves what it finds in `trial.directory`."""
    child = start_child(record_and_tell, path, trial.directory, max_file_bytes, action)
    child.join(HANGS_AFTER_S)
    errors = (trial.directory / "errors").read_text()
    assert child.exitcode == exit_code, errors
    return errors


def assert_history_ends(trial: Trial, error: int, path: Path, max_file_bytes: int | None) -> None:
    errors = told_by_child(trial, path, max_file_bytes)

    # One warning, on whatever line the training was.
    assert errors.count("Warning") == 1
    text = f"RuntimeWarning: the run file can no longer be written ({os.strerror(error)})"
    assert text in errors
    facts = json.loads((trial.directory / "facts").read_text())
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
    assert facts["dropped"] == {"disk_error": 2 * STEPS - facts["retained"]}
    why = f"the history ends early: {os.strerror(error)}"
    assert why in facts["notes"]
    assert why in facts["loaded_notes"]
    assert why in " ".join(facts["report"].split())


@FAULTS.fault(
    done="There is no more room after 132, 148, ..., 244 KiB, each time for another write.",
    holds="The file says that its history ends early, and why.",
    times=3,
    thorough_times=5,
)
def any_write_fails(trial: Trial) -> None:
    max_file_kib = 132 + 16 * trial.number
    child = start_child(record_with_full_disk, trial.path, max_file_kib * 1024)
    child.join(HANGS_AFTER_S)

    assert child.exitcode == 0
    run = pig.Run.load(trial.path)
    assert f"the history ends early: {os.strerror(errno.EFBIG)}" in run.notes
    assert len(run.spans) < run.phases_recorded == SPANS_OF_CHILD


@FAULTS.fault(
    done="There is no room even for the beginning of a run file.",
    holds="`record` raises `RunPathError` with the system's reason, before the training begins.",
)
def no_room_at_all(trial: Trial) -> None:
    errors = told_by_child(trial, trial.path, max_file_bytes=67 * 1024, exit_code=1)

    assert "RunPathError: can't write the run file" in errors
    assert os.strerror(errno.EFBIG) in errors


@FAULTS.fault(
    done="The disk is full in a program that makes errors of warnings.",
    holds="The warning is printed, and the training goes on.",
)
def warnings_are_errors(trial: Trial) -> None:
    errors = told_by_child(trial, trial.path, action="error")

    assert "can no longer be written" in errors
    facts = json.loads((trial.directory / "facts").read_text())
    assert facts["phases_recorded"] == 2 * STEPS
