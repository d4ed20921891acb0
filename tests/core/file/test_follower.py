# SPDX-License-Identifier: Apache-2.0
"""Following a run file while it is written."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file import follower
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.follower import KEPT_BLOCKS, RunFollower
from pyinstrument_gpu.core.file.framing import SLOT_BYTES, SLOTS_OFFSET
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.errors import RunFileDamagedError, RunFileVersionError
from tests.helpers.encoders import pack_block, pack_file_header
from tests.helpers.made_recording import Recording
from tests.helpers.run_writer import RunWriter

SMALL = dict.fromkeys(KEPT_BLOCKS, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "train.gpurun"


@pytest.fixture
def followed(path: Path) -> Iterator[RunFollower]:
    found = RunFollower(path)
    yield found
    found.close()


def overwrite(path: Path, data: bytes) -> None:
    """Write as a recorder does: in place."""
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()


def run_of(followed: RunFollower) -> Run:
    return Run.from_blocks(followed.look())


def assert_same(run: Run, other: Run) -> None:
    """Everything that a made-up recording has."""
    for column in ("spans", "span_self_ns", "span_device_ns", "span_device_clock_ns"):
        assert np.array_equal(getattr(run, column), getattr(other, column)), column
    for steps in (run.steps.array, other.steps.array):
        steps["samples"][np.isnan(steps["samples"])] = -1
    assert np.array_equal(run.steps.array, other.steps.array)
    assert (run.paths, run.threads, run.streams) == (other.paths, other.threads, other.streams)
    assert run.environment == other.environment
    assert run.statistics == other.statistics
    assert run.step_totals == other.step_totals
    assert (run.open_phases, run.open_step) == (other.open_phases, other.open_step)
    assert (run.collectives, run.stalls) == (other.collectives, other.stalls)
    assert (run.complete, run.notes, run.duration_ns) == (
        other.complete,
        other.notes,
        other.duration_ns,
    )


@pytest.mark.parametrize("max_slots", [1 << 32, 20])
@pytest.mark.parametrize("every", [1, pytest.param(3, marks=pytest.mark.thorough), 12])
def test_each_look_finds_what_a_reader_finds(
    path: Path, followed: RunFollower, every: int, max_slots: int
) -> None:
    for version in Recording(seed=5, max_slots=max_slots).versions[every - 1 :: every]:
        overwrite(path, version)
        found, read = run_of(followed), Run.from_bytes(version)
        if max_slots == 20:  # the follower may have what has made room in the file
            count = len(read.spans)
            columns = ["path", "step", "host_begin_ns", "host_end_ns"]
            assert np.array_equal(found.spans[columns][-count:], read.spans[columns])
            assert np.array_equal(found.steps.array["index"][-20:], read.steps.array["index"][-20:])
            assert found.open_step == read.open_step
        else:
            assert_same(found, read)


def test_only_the_newest_blocks_are_kept(
    path: Path, followed: RunFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "KEPT_BLOCKS", SMALL)
    recording = Recording(seed=6)
    for version in recording.versions:
        overwrite(path, version)
        blocks = followed.look()
        assert all(len(blocks.logs.get(block_type, [])) <= 2 for block_type in SMALL)
    assert BlockType.SPANS in blocks.shortened

    run, whole = Run.from_blocks(blocks), Run.from_bytes(recording.final)
    assert 400 < len(run.spans) < len(whole.spans)
    columns = ["path", "step", "host_begin_ns", "host_end_ns"]
    assert np.array_equal(run.spans[columns], whole.spans[columns][-len(run.spans) :])
    assert run.phases.keys() == whole.phases.keys()
    assert all(run.phases[path] == whole.phases[path] for path in run.phases)
    assert run.step_totals == whole.step_totals
    assert not [note for note in run.notes if "to make room" in note or "missing" in note]


def test_where_a_part_is_missing_behind_the_statistics_none_of_it_counts(
    path: Path, followed: RunFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "KEPT_BLOCKS", dict.fromkeys(KEPT_BLOCKS, 1))
    recording = Recording(seed=6)
    overwrite(path, recording.versions[-2])  # the last statistics are those of three ticks before
    run, covered = run_of(followed), recording.watermarks[-2]
    assert len(run.spans) < len(recording.spans) - covered[0]
    assert run.step_totals == recording.fold_steps(np.arange(covered[1]))
    expected = recording.fold(np.arange(covered[0]))
    assert {key: phase.host for key, phase in run.statistics.items() if phase.host} == {
        key: phase.host for key, phase in expected.items()
    }


def test_nothing_is_read_twice(
    path: Path, followed: RunFollower, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, offset: int) -> bytes:
        if count == SLOT_BYTES:
            reads.append((offset - SLOTS_OFFSET) // SLOT_BYTES)
        return pread(descriptor, count, offset)

    monkeypatch.setattr(os, "pread", counted)
    versions = Recording(seed=7, ticks=6).versions
    for version in versions:
        overwrite(path, version)
        followed.look()
        before = len(reads)
        followed.look()
        assert len(reads) == before
    # Four blocks of spans, for example, of which each look finds one that has grown.
    assert len(reads) < 12 * len(versions)


def test_a_recording_that_goes_on(path: Path, followed: RunFollower) -> None:
    with pig.record(path, device_timing=False) as recording:
        for _ in range(3):
            for _ in range(700):
                with pig.gpu_step(), pig.gpu_phase("forward"):
                    pass
            with pig.gpu_phase("evaluate"):
                read = recording.snapshot()
                found = run_of(followed)
            assert len(found.steps.closed) >= len(read.steps.closed)
            assert found.phases["forward"].count >= read.phases["forward"].count
            assert [phase.path for phase in found.open_phases] == ["evaluate"]
    assert_same(run_of(followed), recording.run)


def test_a_file_that_is_overwritten_by_the_next_run(path: Path, followed: RunFollower) -> None:
    first, second = Recording(seed=1, ticks=2), Recording(seed=2, ticks=1)
    overwrite(path, first.final)
    assert run_of(followed).environment["host"] == "h1"
    overwrite(path, b"")
    assert run_of(followed).environment["host"] == "h1"
    assert followed.lost == "the file has been replaced by something that is no run"
    overwrite(path, second.final)
    assert_same(run_of(followed), Run.from_bytes(second.final))
    assert followed.lost is None


def test_a_file_that_another_one_replaces(path: Path, followed: RunFollower) -> None:
    first, second = Recording(seed=1, ticks=2), Recording(seed=2, ticks=1)
    overwrite(path, first.versions[0])
    followed.look()
    other = path.with_name("other")
    overwrite(other, b"a text")
    moved = path.rename(path.with_name("moved"))
    other.rename(path)
    overwrite(moved, first.final)  # its recorder goes on
    assert_same(run_of(followed), Run.from_bytes(first.final))
    assert followed.lost == "the file has been replaced by something that is no run"
    overwrite(path, second.final)
    assert run_of(followed).environment["host"] == "h2"
    assert followed.lost is None


@pytest.mark.parametrize("is_removed", [False, True])
def test_a_file_that_is_gone_is_followed_further(
    path: Path, followed: RunFollower, is_removed: bool
) -> None:
    recording = Recording(seed=3, ticks=2)
    overwrite(path, recording.versions[0])
    followed.look()
    with open(path, "r+b") as file:
        if is_removed:
            path.unlink()
        else:
            path.rename(path.with_name("other"))
        file.write(recording.final)
    assert_same(run_of(followed), Run.from_bytes(recording.final))
    assert followed.lost == "the file has been moved or removed"


def test_a_file_that_is_made_shorter(path: Path, followed: RunFollower) -> None:
    data = Recording(seed=3, ticks=4).final
    overwrite(path, data)
    run = run_of(followed)
    os.truncate(path, 70_000)
    assert_same(run_of(followed), run)
    assert followed.lost == "another program has made the file shorter"


def test_a_file_that_ends_anywhere(path: Path) -> None:
    data = Recording(seed=3, ticks=4).final
    for size in range(64, len(data), 30011):
        overwrite(path, data[:size])
        followed = RunFollower(path)
        followed.look()
        assert len(run_of(followed).spans) == len(Run.from_bytes(data[:size]).spans)
        overwrite(path, data)
        assert_same(run_of(followed), Run.from_bytes(data))
        followed.close()


NAMES, STATE = BlockType.NAMES, BlockType.STATE


def texts_of(followed: RunFollower) -> list[bytes]:
    return [bytes(block.payload) for block in followed.look().logs.get(NAMES, [])]


def test_a_block_that_is_being_written_is_read_with_the_next_look(
    path: Path, followed: RunFollower
) -> None:
    whole = pack_file_header(7) + pack_block(NAMES, 7, 0, 0, 0, b"abc")
    overwrite(path, whole[:-1] + b"?")
    assert texts_of(followed) == []
    assert followed.look().damaged == 1
    overwrite(path, whole)
    assert texts_of(followed) == [b"abc"]
    assert followed.look().damaged == 0


def test_a_document_that_is_being_replaced(path: Path, followed: RunFollower) -> None:
    writer = RunWriter(7)
    for version in (b"first", b"second"):
        writer.write_document(STATE, version)
    data = bytes(writer.data)
    overwrite(path, data[:-1] + b"?")
    assert followed.look().documents == {STATE: b"first"}
    overwrite(path, data)
    assert followed.look().documents == {STATE: b"second"}
    assert followed.look().damaged == 0


@pytest.mark.parametrize("max_slots", [6, 1 << 32])
def test_what_is_replaced_while_it_is_read_is_not_mixed(
    path: Path, monkeypatch: pytest.MonkeyPatch, max_slots: int
) -> None:
    # A document of two parts, which counts on what was written before it, and a log of which the
    # oldest block may make room for the newest.
    writer = RunWriter(7, max_slots)
    contents, states = [bytes([version]) * 20_000 for version in range(5)], []
    for content in contents:
        writer.append(BlockType.SPANS, [bytes([content[0]]) * 40] * 500)
        writer.write_document(STATE, content)
        states.append(bytes(writer.data))
    pread, calls = os.pread, 0

    def reading(at: int) -> int:
        """Look while the file is replaced before this call; returns the number of calls."""
        nonlocal calls
        calls = 0
        overwrite(path, states[2])

        def replacing(descriptor: int, count: int, offset: int) -> bytes:
            nonlocal calls
            calls += 1
            if calls == at:
                overwrite(path, states[4])
            return pread(descriptor, count, offset)

        followed = RunFollower(path)
        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", replacing)
            blocks = followed.look()
        state = blocks.documents.get(STATE)
        assert state in (None, *contents)
        spans = 0
        for block in blocks.logs.get(BlockType.SPANS, []):
            for number, begin in enumerate(range(0, len(block.payload), 40), block.first):
                assert bytes(block.payload[begin : begin + 40]) == bytes([number // 500]) * 40
            spans = block.first + len(block.payload) // 40
        if state is not None and max_slots > 6:
            assert spans >= 500 * (state[0] + 1)
        followed.look()
        assert followed.look().documents[STATE] == (contents[4] if at <= calls else contents[2])
        followed.close()
        return calls

    at = 1
    while reading(at) >= at:
        at += 1
    assert at > 20


def test_slots_with_something_else(path: Path, followed: RunFollower) -> None:
    stranger = pack_block(NAMES, 8, 0, 0, 0, b"of another run")
    unknown = pack_block(99, 7, 1, 0, 0, b"of a newer version")
    data = pack_file_header(7) + stranger.ljust(SLOT_BYTES, b"\0") + unknown
    overwrite(path, data)
    for damaged in (0, 1, 1):
        blocks = followed.look()
        assert (blocks.logs, blocks.documents, blocks.damaged) == ({}, {}, damaged)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", RunFileDamagedError),
        (b"a text", RunFileDamagedError),
        (pack_file_header(7)[:9] + b"\x02" + pack_file_header(7)[10:], RunFileDamagedError),
    ],
)
def test_a_file_that_is_no_run(
    path: Path, followed: RunFollower, data: bytes, error: type[Exception]
) -> None:
    overwrite(path, data)
    with pytest.raises(error):
        followed.look()


def test_another_version(path: Path, followed: RunFollower, monkeypatch: Any) -> None:
    overwrite(path, pack_file_header(7))
    monkeypatch.setattr("pyinstrument_gpu.core.file.framing.MAJOR_VERSION", 3)
    with pytest.raises(RunFileVersionError, match="use an older one"):
        followed.look()


def test_no_file(followed: RunFollower) -> None:
    with pytest.raises(FileNotFoundError):
        followed.look()
