# SPDX-License-Identifier: Apache-2.0
"""Requests to a recording from outside its process."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file.control_path import control_path


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[pig.Recording]:
    with pig.record(tmp_path / "train.gpurun") as recording:
        yield recording


def request(recording: pig.Recording, content: str) -> Path:
    assert recording.path is not None
    path = control_path(recording.path)
    path.write_text(content)
    path.chmod(0o600)
    return path


def step() -> None:
    with pig.gpu_step():
        torch.ones(1)


def test_a_request_is_followed_once(recording: pig.Recording) -> None:
    assert control_path(Path("/a/train.gpurun")) == Path("/a/train.gpurun.control")
    step()
    profiled = recording.watchers["operations"]
    profiled.look_for_request()  # there is none
    path = request(recording, '{"profile_steps": 2}')
    profiled.look_for_request()
    assert not path.exists()
    profiled.look_for_request()
    for _ in range(4):
        step()
    run = recording.stop()
    assert run.operations is not None
    assert run.operations.profiled == ((1, 2),)
    assert run.notes == ()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "it is no JSON"),
        ("{", "it is no JSON"),
        ("\udcff", "it is no JSON"),
        ("[" * 3000, "it is no JSON"),
        ("3", 'it should be {"profile_steps": N}, with N from 1 to 1,000'),
        ('{"profile_steps": 0}', 'it should be {"profile_steps": N}, with N from 1 to 1,000'),
        ('{"profile_steps": true}', 'it should be {"profile_steps": N}, with N from 1 to 1,000'),
        ('{"profile_steps": 1e9}', 'it should be {"profile_steps": N}, with N from 1 to 1,000'),
        (" " * 5000, "it has more than 4096 bytes"),
    ],
)
def test_a_wrong_request_is_a_note(recording: pig.Recording, content: str, reason: str) -> None:
    path = request(recording, "")
    path.write_bytes(content.encode(errors="surrogateescape"))
    recording.watchers["operations"].look_for_request()
    assert not path.exists()
    assert recording.stop().notes == (
        f"a request in train.gpurun.control was not followed: {reason}",
    )


def test_a_file_that_others_may_write_is_not_read(recording: pig.Recording) -> None:
    path = request(recording, '{"profile_steps": 2}')
    path.chmod(0o622)
    recording.watchers["operations"].look_for_request()
    assert path.exists()
    (note,) = recording.stop().notes
    assert "others than its owner may write it" in note


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_regular_file_is_not_read(recording: pig.Recording, kind: str) -> None:
    assert recording.path is not None
    path = control_path(recording.path)
    if kind == "link":
        path.symlink_to(recording.path)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    profiled = recording.watchers["operations"]
    profiled.look_for_request()
    profiled.look_for_request()
    assert os.path.lexists(path)
    path.rmdir() if kind == "folder" else path.unlink()
    request(recording, "{").replace(path)
    profiled.look_for_request()
    assert not path.exists()
    first, second = recording.stop().notes
    why = "it is no regular file. No request is followed until it is removed or replaced"
    assert first.endswith(why)
    assert second.endswith("it is no JSON")


def test_two_requests_at_once(recording: pig.Recording) -> None:
    profiled = recording.watchers["operations"]
    for _ in range(2):
        request(recording, '{"profile_steps": 1}')
        profiled.look_for_request()
    step()
    step()
    run = recording.stop()
    assert run.operations is not None
    assert run.operations.profiled == ((0, 0),)
    (note,) = run.notes
    assert note.endswith("other steps are still to be profiled")


def test_a_recording_looks_by_itself(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with pig.record(tmp_path / "train.gpurun") as recording:
        step()
        assert set(threading.enumerate()) <= threads  # it takes no thread of Python
        path = request(recording, '{"profile_steps": 1}')
        while path.exists():
            step()
            time.sleep(0.01)
        step()
    assert recording.run.operations is not None
    ((first, last),) = recording.run.operations.profiled
    assert first == last


def test_one_that_cannot_be_removed_is_noted_once(recording: pig.Recording) -> None:
    assert recording.path is not None
    control_path(recording.path).mkdir()
    for _ in range(2):
        recording.watchers["operations"].look_for_request()
    assert len(recording.stop().notes) == 1
