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
STARTED = CpuContention(
    10 * SECOND, 2, busy_ns=20 * SECOND, own_ns=20 * SECOND, started_ns=15 * SECOND
)
THROTTLED = CpuContention(10 * SECOND, 8, 20 * SECOND, 20 * SECOND, throttled_ns=4 * SECOND)


def run_that_waits(share: float, processor: CpuContention | None = None) -> Run:
    """Twenty steps of 10 ms, each of which waits for a processor for a share of it."""
    return with_waits(made_run([10 * MS] * 20), share, processor)


def section_of(document: Document) -> str:
    return printed(sections(document).get("cpu_contention", []), 200)


@pytest.mark.parametrize(
    ("processor", "cause"),
    [
        pytest.param(BUSY, ", as other processes used 1.8 of 2 processors", id="other processes"),
        pytest.param(
            THROTTLED,
            ", as the CPU limit of its container or control group throttled it",
            id="throttled",
        ),
        pytest.param(
            QUIET,
            ", as it has more threads and processes at work than the 2 processors that it may use",
            id="its own",
        ),
        pytest.param(
            STARTED, ", as processes that it started used 1.5 of 2 processors", id="its children"
        ),
        pytest.param(None, "", id="unknown"),
    ],
)
def test_a_warning_says_so_and_the_verdict_is_of_the_program(
    processor: CpuContention | None, cause: str
) -> None:
    document = document_of(run_that_waits(0.45, processor))
    assert document.notes == (
        f"CPU contention: steps waited 45% of the time for a processor{cause}. Times are longer "
        "than without that.",
    )
    assert document.verdict.startswith("A step takes 10.0 ms, of which the host spends")


def test_section_says_how_long_for_whom_and_what_follows() -> None:
    text = section_of(document_of(run_that_waits(0.45, BUSY)))
    assert "Steps waited 45% of the time for a processor (read in 20 of 20)" in text
    assert (
        "Other processes used 1.8 of 2 processors; some program was waiting 90% of the time" in text
    )
    assert "savings may be smaller by as much" in text


def test_a_little_is_one_line_and_nothing_is_none() -> None:
    little = document_of(run_that_waits(0.05, QUIET))
    assert "Steps waited 5% of the time" in section_of(little)
    assert "savings may be" not in section_of(little)
    assert not little.notes
    for run in (run_that_waits(0.0, BUSY), made_run([10 * MS] * 20)):
        document = document_of(run)
        assert section_of(document).strip() == ""
        assert not document.notes


def test_another_thread_that_waits_counts_only_where_that_of_the_steps_is_unknown() -> None:
    processor = CpuContention(
        10 * SECOND, 2, 20 * SECOND, 4 * SECOND, thread="omp", thread_wait_ns=3 * SECOND
    )
    assert not document_of(run_that_waits(0.0, processor)).notes
    unknown = made_run([10 * MS] * 20)
    unknown.cpu_contention = processor
    (note,) = document_of(unknown).notes
    assert note.startswith(
        "CPU contention: omp waited 30% of the time for a processor, as other processes used"
    )


def test_savings_may_be_smaller_by_as_much_as_processors_were_waited_for() -> None:
    quiet = simulated(drawn("syncs", 3)).run
    first, *_ = analysis.of(quiet).advice
    busy = with_waits(copy.copy(quiet), 0.2)
    assert analysis.of(busy).is_contended
    of_busy = {one.about: one for one in analysis.of(busy).advice}[first.about]
    assert first.low_ns is not None and of_busy.low_ns == pytest.approx(0.8 * first.low_ns)
    assert of_busy.high_ns == first.high_ns
    most_ns = {one.about: one.high_ns for one in guides_of(busy)}
    for one in guides_of(quiet):
        # More workers may lose where processors are short.
        is_of_workers = one.about.startswith("use more loader workers")
        assert most_ns[one.about] == (0.0 if is_of_workers else one.high_ns)
    assert not any("waiting for a processor" in one.about for one in document_of(busy).findings)


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
