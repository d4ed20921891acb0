# SPDX-License-Identifier: Apache-2.0
"""What is no run file, or makes no sense though its checksums are right: it is refused."""

import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import read_blocks
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.file.statistics import StatisticsDocument
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.core.steps import StepTotals
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import Syncs, SyncSite, SyncTotals
from pyinstrument_gpu.errors import (
    RunFileDamagedError,
    RunFileVersionError,
)
from tests.helpers.encoders import (
    encode_json,
    encode_statistics,
    encode_sync_site,
    encode_sync_statistics,
    pack_block,
    pack_file_header,
)
from tests.helpers.made_recording import Recording
from tests.helpers.run_items import ONE_PHASE, path_item, written
from tests.helpers.run_writer import RunWriter

RECORDING = Recording(seed=11)


HEADER = pack_file_header(1)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        *((data, "not a run file") for data in (b"", b"\x89GPU", b"PK\x03\x04" * 100, bytes(5000))),
        (HEADER[:10], "begins like one, and ends after 10 bytes"),
        (HEADER[:40] + b"\1" + HEADER[41:], "the header of the run file is damaged"),
    ],
)
def test_not_a_run_file(data: bytes, reason: str) -> None:
    with pytest.raises(RunFileDamagedError, match=reason):
        Run.from_bytes(data)


@pytest.mark.parametrize(
    ("offset", "value", "hint"),
    [
        (8, 3, "use a newer one"),
        (8, 1, "use an older one, or record again"),
        (16, 32768, "use a newer one"),
        (20, 8192, "use a newer one"),
    ],
)
def test_unknown_format(offset: int, value: int, hint: str) -> None:
    header = bytearray(RECORDING.final[:60])
    header[offset : offset + 4] = value.to_bytes(4, "little")
    header += zlib.crc32(header).to_bytes(4, "little")

    with pytest.raises(RunFileVersionError, match=hint):
        Run.from_bytes(header)


NEVER_NS = 2**61
"""No clock gets there."""
STATE: dict[str, Any] = {
    "now_ns": 1,
    "final": True,
    "spans": 0,
    "steps": 0,
    "device_times": 0,
    "step_drops": 0,
    "harvester_cpu_ns": 0,
    "phases_recorded": 0,
}
OPEN_STEP = {"serial": 1, "thread": 0, "begin_ns": 0, "items": 1, "samples": None}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("now_ns", True),
        ("now_ns", None),
        ("now_ns", NEVER_NS),
        ("final", 1),
        ("dropped", {"depth": "3"}),
        ("open", [[0, 0, NEVER_NS, 0, 0]]),
        ("open", [[0, 0, 0, -2, 0]]),
        ("open", [[0, 0, 0, 0]]),
        ("device_times", -1),
        ("device", {"every": 0, "records": 1, "record_ns": 1}),
        ("device", {"every": 1, "records": 1}),
        ("device", {"every": 1, "records": 1, "record_ns": 1, "pending": [[0]]}),
        ("open_step", {"serial": 1}),
        ("open_step", {**OPEN_STEP, "begin_ns": NEVER_NS}),
        ("open_step", {**OPEN_STEP, "samples": math.inf}),
        ("error", 28),
    ],
)
def test_state_of_the_wrong_type(key: str, value: object) -> None:
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.STATE, encode_json(STATE))
    assert Run.from_bytes(writer.data).complete
    writer.write_document(BlockType.STATE, encode_json({**STATE, key: value}))

    with pytest.raises(RunFileDamagedError, match=r"the STATE.* makes no sense"):
        Run.from_bytes(writer.data)


def test_what_may_be_null_may_also_be_missing() -> None:
    step = {key: value for key, value in OPEN_STEP.items() if value is not None}
    device = {"every": 1, "records": 1, "record_ns": 1}
    writer = RunWriter(run_id=1)
    writer.write_document(
        BlockType.STATE, encode_json({**STATE, "open_step": step, "device": device})
    )
    run = Run.from_bytes(writer.data)
    assert run.device_timing == DeviceTimingSummary(1, 1, 1)
    assert run.pending_device_work == {}


@pytest.mark.parametrize("name", STATE)
def test_state_that_lacks_what_every_version_has_said(name: str) -> None:
    writer = RunWriter(run_id=1)
    writer.write_document(
        BlockType.STATE, encode_json({key: value for key, value in STATE.items() if key != name})
    )
    with pytest.raises(RunFileDamagedError, match=name):
        Run.from_bytes(writer.data)


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"{", b"[" * 100_000, b'{"now_ns":' + b"9" * 5000 + b"}"]
)
def test_document_that_is_no_json_object(content: bytes) -> None:
    writer = RunWriter(run_id=1)
    writer.write_document(BlockType.ENVIRONMENT, content)

    with pytest.raises(RunFileDamagedError, match="the ENVIRONMENT block"):
        Run.from_bytes(writer.data)


@pytest.mark.parametrize(
    ("log", "payload"),
    [
        ("NAMES", b"\x05\x00abc"),
        ("NAMES", b"\x05"),
        ("NAMES", b"\x01\x00\xff"),
        ("THREADS", bytes(8) + b"\x05\x00abc"),
        ("PATHS", b"\xff\xff\xff"),
        ("PATHS", path_item(0, 0)),
        ("DROPPED_STEPS", bytes(8)),
        ("SPANS", bytes(39)),
        ("DEVICE_TIMES", bytes(23)),
        ("STREAMS", bytes(15)),
        ("DEVICE_CLOCKS", bytes(31)),
    ],
)
def test_log_that_makes_no_sense(log: str, payload: bytes) -> None:
    with pytest.raises(RunFileDamagedError, match=f"{log}|a path of the run file"):
        written(None, **{**ONE_PHASE, log: [payload]})


@pytest.mark.parametrize(
    ("offset", "value"),
    [
        pytest.param(24, 3, id="steps"),
        pytest.param(32, 3, id="complete steps"),
        pytest.param(48, 3, id="sampled steps"),
        pytest.param(56, 106, id="sampled time"),
        pytest.param(64, 0x7FF0 << 48, id="infinite samples"),
        pytest.param(72, 3, id="count"),
        pytest.param(80, 201, id="total above count times maximum"),
        pytest.param(80, 9, id="total below count times minimum"),
        pytest.param(88, 5000, id="sum of squares"),
        pytest.param(104, 6, id="minimum"),
        pytest.param(112, 200, id="maximum"),
        pytest.param(120, 2**63, id="number of buckets"),
        pytest.param(120, 1, id="fewer buckets"),
        pytest.param(128, 1920, id="bucket that does not exist"),
        pytest.param(128, 200, id="buckets out of order"),
        pytest.param(136, 0, id="empty bucket"),
        pytest.param(136, 2**63, id="huge bucket"),
        pytest.param(160, 3, id="profiled steps"),
        pytest.param(264, 5 << 32, id="scope"),
        pytest.param(272, 16, id="statistic of a phase"),
    ],
)
def test_statistics_that_contradict_themselves(offset: int, value: int) -> None:
    durations = Statistic.of(np.array([5, 100]))
    document = StatisticsDocument(
        spans=0,
        steps=0,
        device_times=0,
        step_totals=StepTotals(2, 2, 2, 2, 105, 64.0, durations),
        phases={(0, Scope.STEP): PhaseStatistics(host=durations)},
    )
    content = bytearray(encode_statistics(document))
    writer = RunWriter(run_id=1)
    writer.append(BlockType.NAMES, ONE_PHASE["NAMES"])
    writer.append(BlockType.PATHS, ONE_PHASE["PATHS"])
    writer.write_document(BlockType.STATISTICS, bytes(content))
    assert Run.from_bytes(writer.data).phases["a"].host == durations

    content[offset : offset + 8] = value.to_bytes(8, "little")
    writer.write_document(BlockType.STATISTICS, bytes(content))
    with pytest.raises(RunFileDamagedError, match="STATISTICS"):
        Run.from_bytes(writer.data)


def test_cut_off_statistics_are_refused() -> None:
    content = read_blocks(RECORDING.final).documents[BlockType.STATISTICS]
    for length in (0, 15, 100, len(content) - 1):
        writer = RunWriter(run_id=1)
        writer.write_document(BlockType.STATISTICS, content[:length])
        with pytest.raises(RunFileDamagedError, match="STATISTICS"):
            Run.from_bytes(writer.data)


def test_syncs_that_make_no_sense() -> None:
    site = SyncSite("train.py", 7, "train", SyncKind.ITEM, False, SyncTotals(2, 3, 9, 8))
    syncs = Syncs((site,), watched_ns=((0, 5),))
    writer = RunWriter(run_id=1)
    writer.append(BlockType.SYNC_SITES, map(encode_sync_site, syncs.sites))
    writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(syncs))
    with pytest.raises(RunFileDamagedError, match=r"SYNC_STATISTICS.* more waits have a price"):
        Run.from_bytes(writer.data)

    writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(Syncs()))
    assert Run.from_bytes(writer.data).syncs.sites == (replace(site, totals=SyncTotals()),)
    writer.append(BlockType.SYNC_SITES, [bytes(9)])
    with pytest.raises(RunFileDamagedError, match=r"SYNC_SITES.* in the middle of an item"):
        Run.from_bytes(writer.data)


def test_impossible_index_is_refused() -> None:
    block = pack_block(BlockType.STEPS, 1, 0, 0, 1 << 63, b"")
    with pytest.raises(
        RunFileDamagedError, match=r"a STEPS block .* begins at 9223372036854775808"
    ):
        Run.from_bytes(pack_file_header(1) + block)


def test_errors_of_load_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("hello")

    with pytest.raises(RunFileDamagedError, match=r"notes\.txt: not a run file"):
        Run.load(path)
    with pytest.raises(FileNotFoundError):
        Run.load(tmp_path / "missing.gpurun")


def test_line_of_a_library_with_too_many_digits_is_no_line() -> None:
    site = SyncSite("train.py", 7, "train\0" + "9" * 5000 + "\0inner\0lib.py", SyncKind.ITEM, False)
    syncs = Syncs((site,), watched_ns=((0, 5),))
    writer = RunWriter(run_id=1)
    writer.append(BlockType.SYNC_SITES, map(encode_sync_site, syncs.sites))
    writer.write_document(BlockType.SYNC_STATISTICS, encode_sync_statistics(syncs))
    assert Run.from_bytes(writer.data).syncs.sites[0].library is None
