# SPDX-License-Identifier: Apache-2.0
"""What the journal adds to the blocks of a file, and blocks that were only partly written."""

import struct

import pytest

from pyinstrument_gpu.core.file.blocks import Blocks, BlockType
from pyinstrument_gpu.core.file.framing import BLOCK_HEADER_BYTES, read_blocks
from pyinstrument_gpu.errors import RunFileDamagedError
from tests.helpers.encoders import pack_block, pack_file_header
from tests.helpers.run_writer import RunWriter

RUN_ID = 7
NAMES, STATE, TICK = BlockType.NAMES, BlockType.STATE, BlockType.TICK


def section(
    block_type: int, content: bytes, sequence: int = 0, first: int = 0, offset: int = 0
) -> bytes:
    return struct.pack("<IIQQQ", block_type, len(content), sequence, first, offset) + content


def blocks_with(journal: bytes, names: bytes | None = b"abc", versions: int = 1) -> Blocks:
    """A log with one block, which has three items of one byte, as far as `names` goes."""
    writer = RunWriter(RUN_ID)
    if names:
        writer.append(NAMES, [names])
    for version in range(1, versions + 1):
        writer.write_document(STATE, b"state %d" % version)
    writer.write_document(TICK, b"older")
    writer.write_document(TICK, journal)
    return read_blocks(writer.data)


def names_of(blocks: Blocks) -> list[tuple[int, bytes]]:
    return [(block.first, bytes(block.payload)) for block in blocks.logs.get(NAMES, [])]


@pytest.mark.parametrize(
    ("added", "expected"),
    [
        pytest.param(section(NAMES, b"defg", offset=3), [(0, b"abcdefg")], id="goes on"),
        pytest.param(section(NAMES, b"bcdefg", offset=1), [(0, b"abcdefg")], id="overlaps"),
        pytest.param(section(NAMES, b"ab"), [(0, b"abc")], id="is older"),
        pytest.param(section(NAMES, b"efg", offset=4), [(0, b"abc")], id="leaves a gap"),
        pytest.param(section(NAMES, b"xyz1", first=1), [(0, b"abc")], id="is of other items"),
        pytest.param(section(NAMES, b"de", 1, 3), [(0, b"abc"), (3, b"de")], id="next block"),
        pytest.param(section(NAMES, b"e", 1, 3, 1), [(0, b"abc")], id="next without its beginning"),
        pytest.param(section(99, b"de"), [(0, b"abc")], id="unknown type"),
    ],
)
def test_journal_extends_the_newest_block(added: bytes, expected: list[tuple[int, bytes]]) -> None:
    blocks = blocks_with(added)

    assert names_of(blocks) == expected
    assert blocks.intact


def test_log_that_is_in_the_journal_alone() -> None:
    assert names_of(blocks_with(section(NAMES, b"abc"), names=None)) == [(0, b"abc")]
    blocks = blocks_with(section(NAMES, b"abc", 2, 6), names=None)
    assert blocks.only_in_journal == {NAMES}


def test_newer_state_wins() -> None:
    journal = section(STATE, b"in the journal", sequence=2)

    assert blocks_with(journal, versions=1).documents == {STATE: b"in the journal"}
    assert blocks_with(journal, versions=2).documents == {STATE: b"state 2"}


def test_journal_that_was_being_replaced() -> None:
    writer = RunWriter(RUN_ID)
    writer.write_document(TICK, section(NAMES, b"abc"))
    writer.write_document(TICK, section(NAMES, b"abcdef"))
    writer.data[-1] ^= 1
    blocks = read_blocks(writer.data)

    assert names_of(blocks) == [(0, b"abc")]
    assert blocks.intact


@pytest.mark.parametrize("journal", [b"short", section(NAMES, b"abc")[:-1]])
def test_journal_that_makes_no_sense_is_refused(journal: bytes) -> None:
    with pytest.raises(RunFileDamagedError, match="TICK"):
        blocks_with(journal)


def file_with(*blocks: bytes) -> bytearray:
    data = bytearray(pack_file_header(RUN_ID))
    for block in blocks:
        data += block.ljust(16384, b"\0")
    return data


def partly(block: bytes) -> bytes:
    """As it is while it is being written: the rest is still zero."""
    return block[: BLOCK_HEADER_BYTES + 2].ljust(len(block), b"\0")


def test_newest_block_that_was_partly_written_is_no_damage() -> None:
    whole = pack_block(NAMES, RUN_ID, 0, 0, 0, b"abc")
    torn = partly(pack_block(NAMES, RUN_ID, 1, 1, 3, b"defg"))
    for data in (file_with(whole, torn), file_with(whole) + torn[:-1]):
        blocks = read_blocks(data)

        assert names_of(blocks) == [(0, b"abc")]
        assert (blocks.partly_written, blocks.damaged, blocks.intact) == (True, 0, True)


def test_older_or_several_partly_written_blocks_are_damage() -> None:
    torn = partly(pack_block(NAMES, RUN_ID, 0, 0, 0, b"abcd"))
    newer = pack_block(NAMES, RUN_ID, 1, 1, 4, b"efg")
    assert read_blocks(file_with(torn, newer)).damaged == 1
    assert read_blocks(file_with(torn, partly(newer))).damaged == 2
    wrong_header = bytearray(torn)
    wrong_header[24] ^= 2
    assert read_blocks(file_with(bytes(wrong_header))).damaged == 1
    document_now = bytearray(torn)
    document_now[4] = BlockType.TICK
    assert read_blocks(file_with(bytes(document_now))).damaged == 1
