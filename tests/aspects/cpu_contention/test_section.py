# SPDX-License-Identifier: Apache-2.0
"""What a report says of CPU contention, and what it no longer says."""

import copy
import json
from typing import Any

import pytest

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.rules import findings as guides_of
from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.overview import sections
from tests.helpers.encoders import encode_json, encode_state
from tests.helpers.run_items import ONE_PHASE, span_item
from tests.helpers.run_writer import RunWriter
from tests.helpers.simulator.families import drawn
from tests.helpers.simulator.simulation import simulated
from tests.helpers.timed_runs import MS, made_run, with_waits

SECOND = 1_000_000_000
QUIET = CpuContention(10 * SECOND, 2, busy_ns=8 * SECOND, own_ns=8 * SECOND, throttled_ns=0)
BUSY = CpuContention(10 * SECOND, 2, busy_ns=20 * SECOND, own_ns=2 * SECOND, pressure_ns=9 * SECOND)
THROTTLED = CpuContention(10 * SECOND, 8, 20 * SECOND, 20 * SECOND, throttled_ns=4 * SECOND)


def run_that_waits(share: float, processor: CpuContention | None = None) -> Run:
    """Twenty steps of 10 ms, each of which waits for a processor for a share of it."""
    return with_waits(made_run([10 * MS] * 20), share, processor)


def section_of(document: Document) -> str:
    return printed(sections(document).get("cpu_contention", []), 200)


@pytest.mark.parametrize(
    ("processor", "verdict"),
    [
        pytest.param(
            BUSY,
            "A step takes 10.0 ms, of which it waits 45% for a processor: other processes used "
            "1.8 of 2 processors; this run can't tell what a change could save, so record again "
            "when the machine is idle.",
            id="other processes",
        ),
        pytest.param(
            THROTTLED,
            "A step takes 10.0 ms, of which it waits 45% for a processor: the CPU limit of its "
            "container or control group throttled it; this run can't tell what a change could "
            "save, so record again with more processors.",
            id="throttled",
        ),
        pytest.param(
            QUIET,
            "A step takes 10.0 ms, of which it waits 45% for a processor: it has more threads "
            "and processes at work than the 2 processors that it may use; this run can't tell what "
            "a change could save, so record again with more processors.",
            id="its own",
        ),
        pytest.param(
            None,
            "A step takes 10.0 ms, of which it waits 45% for a processor; this run can't tell "
            "what a change could save, so record again with more processors.",
            id="unknown",
        ),
    ],
)
def test_verdict_leads_with_it(processor: CpuContention | None, verdict: str) -> None:
    assert document_of(run_that_waits(0.45, processor)).verdict == verdict


def test_section_says_how_long_for_whom_and_what_follows() -> None:
    text = section_of(document_of(run_that_waits(0.45, BUSY)))
    assert "Steps waited 45% of their time for a processor (read in 20 of 20)" in text
    assert (
        "Other processes used 1.8 of 2 processors; some program was waiting 90% of the time" in text
    )
    assert "no advice is based on them" in text


def test_a_little_is_one_line_and_nothing_is_none() -> None:
    little = document_of(run_that_waits(0.05, QUIET))
    assert "Steps waited 5% of their time" in section_of(little)
    assert "nothing is advised" not in section_of(little)
    assert "for a processor" not in little.verdict
    for run in (run_that_waits(0.0, BUSY), made_run([10 * MS] * 20)):
        document = document_of(run)
        assert section_of(document).strip() == ""
        assert "for a processor" not in document.verdict


def test_another_thread_that_waits_is_contention_too() -> None:
    processor = CpuContention(
        10 * SECOND, 2, 20 * SECOND, 4 * SECOND, thread="omp", thread_wait_ns=3 * SECOND
    )
    document = document_of(run_that_waits(0.0, processor))
    assert document.verdict.startswith(
        "A step takes 10.0 ms, and omp waits 30% of the time for a processor: other processes "
    )
    short = CpuContention(SECOND // 2, 2, SECOND, 0, thread="omp", thread_wait_ns=SECOND // 4)
    assert "for a processor" not in document_of(run_that_waits(0.0, short)).verdict


def test_nothing_is_advised_from_shares_of_a_busy_machine() -> None:
    quiet = simulated(drawn("syncs", 3)).run
    assert analysis.of(quiet).advice and guides_of(quiet)
    assert document_of(quiet).savings is not None
    busy = with_waits(copy.copy(quiet), 0.2)
    assert analysis.of(busy).is_contended
    assert not analysis.of(busy).advice and not analysis.of(busy).doubts and not guides_of(busy)
    document = document_of(busy)
    assert document.savings is None and document.guides is None and not document.findings


def test_in_the_simulator_it_is_what_other_programs_took() -> None:
    run = simulated(drawn("busy processor", 0)).run
    found = analysis.of(run).contention
    assert found is not None and found.share is not None
    assert found.steps == len(run.steps.closed)
    assert 0.02 < found.share < 0.9
    other = analysis.of(simulated(drawn("syncs", 0)).run).contention
    assert other is not None and other.share == 0


def test_its_reading_has_no_row_among_metrics() -> None:
    document = document_of(run_that_waits(0.45, BUSY))
    assert not document.sections["metrics"]
    assert document.sections["cpu_contention"].share == pytest.approx(0.45)


def test_a_step_waits_no_longer_than_it_takes() -> None:
    assert document_of(run_that_waits(3.0)).sections["cpu_contention"].share == 1.0


def test_unknown_is_said() -> None:
    run = made_run([10 * MS] * 20)
    assert any(line.startswith("Waits for a processor:") for line in document_of(run).unknown)
    assert not any("processor" in line for line in document_of(run_that_waits(0.0)).unknown)


def written(document: Any) -> Run:
    writer = RunWriter(run_id=1)
    for name, items in {**ONE_PHASE, "SPANS": [span_item()]}.items():
        writer.append(BlockType[name], items)
    writer.write_document(BlockType.STATE, encode_state(State(spans=1, phases_recorded=1)))
    writer.write_document(BlockType.ASPECTS, encode_json({"processor": document}))
    return Run.from_bytes(writer.data)


@pytest.mark.parametrize(
    "damaged",
    [
        1,
        {},
        {"elapsed_ns": 1},
        {"elapsed_ns": 1, "processors": 0},
        {"elapsed_ns": -1, "processors": 1},
    ],
)
def test_a_document_that_makes_no_sense_is_left_out(damaged: Any) -> None:
    run = written(damaged)
    assert run.cpu_contention is None
    assert any("what was noted of processors was left out" in note for note in run.notes)


def test_document_is_read() -> None:
    facts: dict[str, Any] = {
        "elapsed_ns": 3 * SECOND,
        "processors": 2,
        "busy_ns": 5 * SECOND,
        "own_ns": SECOND,
    }
    run = written({**facts, "of_a_newer_version": 1})
    assert run.cpu_contention == CpuContention(**facts)
    assert run.cpu_contention.others == pytest.approx(4 / 3)
    assert json.dumps(run.cpu_contention.throttled_ns) == "null"
