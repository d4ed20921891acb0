# SPDX-License-Identifier: Apache-2.0
"""The aspect that docs/architecture.md adds: one folder and its rows are all that it takes."""

import gc
import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema.validators import validator_for

import pyinstrument_gpu as pig
from examples.aspect.collector.aspect import CollectorAspect
from examples.aspect.collector.watch import CollectorWatch
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects import table
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import read_blocks
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.document.document import document_of
from pyinstrument_gpu.document.json_text import json_text
from pyinstrument_gpu.native import native
from pyinstrument_gpu.page.page import html_page
from tests.helpers.encoders import encode_state
from tests.helpers.run_items import ONE_PHASE, span_item
from tests.helpers.run_writer import RunWriter

SCHEMAS = Path(__file__).parents[2] / "docs" / "make_report_schema.py"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(table, "ASPECTS", (*table.ASPECTS, CollectorAspect()))
        aspects.cache_clear()
        yield
    aspects.cache_clear()


def recorded(path: Path) -> bytes:
    """The file of a recording of two steps, in the second of which objects are collected."""
    watch = CollectorWatch()
    with pig.record(path) as recording:
        watch.begin(recording)
        with gpu_step():
            pass
        with gpu_step():
            gc.collect()
        watch.end()
    return path.read_bytes()


def collector_of(run: Any) -> Any:
    """A run that type checkers know has no such attribute."""
    return run.collector


@pytest.mark.usefixtures("added")
def test_its_section_is_in_report_json_and_page(tmp_path: Path) -> None:
    run = Run.from_bytes(recorded(tmp_path / "a.gpurun"))
    known = collector_of(run)
    assert known.count >= 1
    assert 0 < known.longest_ns <= known.in_steps_ns <= known.total_ns
    assert known.longest_step == 1

    report = run.report(width=120)
    assert "Python's garbage collector\n" in report
    assert ", in step 1\n" in report
    assert "Garbage collector" in html_page([run], ["a.gpurun"])
    printed = json.loads(json_text(document_of(run)))
    assert printed["collector"]["longest_step"] == 1
    made = runpy.run_path(str(SCHEMAS))
    schema = made["schema_text"](made["PRINTED"][0])
    assert "what Python's garbage collector took" in schema
    validator_for(json.loads(schema))(json.loads(schema)).validate(printed)


@pytest.mark.usefixtures("added")
def test_what_was_not_watched_is_unknown() -> None:
    with pig.record() as recording, gpu_step():
        pass
    assert collector_of(recording.run) is None
    assert document_of(recording.run).unknown[-1].startswith("Time of the garbage collector: ")


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"[]", b"\xff", b'{"collector":{}}', b'{"collector":{"count":-1}}', b"[" * 100_000],
)
def test_a_document_that_makes_no_sense_is_refused_as_a_whole(damaged: bytes) -> None:
    writer = RunWriter(run_id=1)
    for name, items in {**ONE_PHASE, "SPANS": [span_item()]}.items():
        writer.append(BlockType[name], items)
    writer.write_document(BlockType.STATE, encode_state(State(spans=1, phases_recorded=1)))
    writer.write_document(BlockType.ASPECTS, damaged)
    run = Run.from_bytes(writer.data)
    assert collector_of(run) is None
    lead = "what was noted of the garbage collector was left out: "
    assert [note for note in run.notes if note.startswith(lead)]
    assert run.phases["a"].count == 1


def test_without_it_the_file_is_read_and_says_nothing_of_it(tmp_path: Path) -> None:
    run = Run.from_bytes(recorded(tmp_path / "a.gpurun"))
    assert run.steps_ended == 2
    assert not run.notes


def test_documents_of_several_aspects_share_a_block(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    with pig.record(path) as recording:
        for name, content in (("a", b'{"b":1}'), ("b_2", b"{}"), ("a", b'{"b":2}')):
            native.set_document(recording, name, content)
        native.harvest()
        native.set_document(recording, "c", b"[]")
        with pytest.raises(ValueError, match="small letters"):
            native.set_document(recording, 'a"b', b"{}")
    shared = json.loads(read_blocks(path.read_bytes()).documents[BlockType.ASPECTS])
    assert shared == {"a": {"b": 2}, "b_2": {}, "c": []}
    assert not Run.load(path).notes
