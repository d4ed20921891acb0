# SPDX-License-Identifier: Apache-2.0
"""What the package writes is what the native module writes of the same."""

import json
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.core.file.blocks import Blocks, BlockType
from pyinstrument_gpu.core.file.framing import (
    SLOT_BYTES,
    SLOTS_OFFSET,
    BlockHeader,
    read_blocks,
    read_file_header,
)
from pyinstrument_gpu.core.file.names import decode_names, decode_threads
from pyinstrument_gpu.core.file.state import decode_state
from pyinstrument_gpu.core.file.statistics import decode_statistics
from pyinstrument_gpu.core.run import Run
from tests.helpers.encoders import (
    encode_state,
    encode_statistics,
    encode_text,
    encode_thread,
    pack_block,
    pack_file_header,
)
from tests.helpers.run_writer import encode, save


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    """A file while a phase and a step are open, and once the recording was stopped."""
    path = tmp_path_factory.mktemp("recorded") / "run.gpurun"
    with pig.record(path) as recording:
        for _ in range(1000):
            with pig.gpu_step(samples=2), pig.gpu_phase("forward"), pig.gpu_phase("é\ud800"):
                pass
        with pig.gpu_step(), pig.gpu_phase("forward"):
            recording.snapshot()
            open_bytes = path.read_bytes()
    return open_bytes, path.read_bytes()


@pytest.fixture
def recorded(versions: tuple[bytes, bytes]) -> bytes:
    return versions[-1]


@pytest.fixture
def blocks(recorded: bytes) -> Blocks:
    return read_blocks(recorded)


def test_blocks_are_framed_alike(recorded: bytes) -> None:
    view = memoryview(recorded)
    assert pack_file_header(read_file_header(view)) == recorded[:SLOTS_OFFSET]
    sizes = []
    for begin in range(SLOTS_OFFSET, len(recorded), SLOT_BYTES):
        slot = view[begin : begin + SLOT_BYTES]
        header = BlockHeader.read(slot)
        payload = header.payload(slot)
        assert payload is not None
        fields = (header.type, header.run_id, header.slot, header.sequence, header.first)
        block = pack_block(*fields, bytes(payload))
        assert bytes(slot[: len(block)]) == block
        sizes.append(len(payload))
    assert max(sizes) > 16_000


def test_statistics_are_laid_out_alike(blocks: Blocks) -> None:
    content = blocks.documents[BlockType.STATISTICS]
    assert encode_statistics(decode_statistics(content)) == content


def test_the_state_is_laid_out_alike(versions: tuple[bytes, bytes]) -> None:
    for version in versions:
        content = read_blocks(version).documents[BlockType.STATE]
        written, read = json.loads(encode_state(decode_state(content))), json.loads(content)
        assert bool(read["open"]) == (read["open_step"] is not None) == (not read["final"])
        assert {name: written[name] for name in read} == read


def test_names_and_threads_are_laid_out_alike(blocks: Blocks) -> None:
    (names,), (threads,) = blocks.logs[BlockType.NAMES], blocks.logs[BlockType.THREADS]
    assert b"".join(map(encode_text, decode_names(names.payload))) == names.payload
    assert b"".join(map(encode_thread, decode_threads(threads.payload))) == threads.payload


def test_a_recorded_run_is_written_and_read_again(recorded: bytes, tmp_path: Path) -> None:
    run, path = Run.from_bytes(recorded), tmp_path / "run.gpurun"
    save(run, path)
    assert path.read_bytes() == encode(run)
    again = Run.load(path)
    assert again.spans.tobytes() == run.spans.tobytes()
    assert again.steps.array.tobytes() == run.steps.array.tobytes()
    assert again.statistics == run.statistics
    assert (again.environment, again.notes) == (run.environment, run.notes)
    assert (again.open_phases, again.open_step) == (run.open_phases, run.open_step)
