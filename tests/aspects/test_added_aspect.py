# SPDX-License-Identifier: Apache-2.0
"""The aspect that docs/architecture.md adds: one folder and one row are all that it takes."""

import json
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema.validators import validator_for

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.aspects import table
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.aspect import aspects
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import read_blocks
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native
from tests.helpers.encoders import encode_state
from tests.helpers.forged_file import without
from tests.helpers.run_items import ONE_PHASE, span_item
from tests.helpers.run_writer import RunWriter

SCHEMAS = Path(__file__).parents[2] / "docs" / "make_report_schema.py"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        row = table.AspectRow("examples.aspect.switches", "watch")
        patched.setattr(table, "ASPECTS", (*table.ASPECTS, row))
        aspects.cache_clear()
        yield
    aspects.cache_clear()


def recorded(path: Path) -> bytes:
    """The file of a recording of two steps."""
    with pig.record(path):
        for _ in range(2):
            with gpu_step():
                pass
    return path.read_bytes()


def switches_of(run: Any) -> Any:
    """A run that type checkers know has no such attribute."""
    return run.switches


def reported(path: Path, *options: str) -> str:
    """What `pyinstrument-gpu report` prints of a file."""
    done = CliRunner().invoke(main, ["report", "-v", str(path), *options])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.usefixtures("added")
def test_its_section_is_in_report_json_schema_and_page(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    known = switches_of(Run.from_bytes(recorded(path)))
    assert "Context switches\n" in reported(path)
    printed = json.loads(reported(path, "--json"))
    assert printed["switches"]["involuntary"] == known.involuntary
    made = runpy.run_path(str(SCHEMAS))
    schema = json.loads(made["schema_text"](made["PRINTED"][0]))
    assert "the program's threads lost their processor" in json.dumps(schema)
    validator_for(schema)(schema).validate(printed)
    reported(path, "--html")
    assert "It was interrupted " in (tmp_path / "a.html").read_text("utf-8")


@pytest.mark.usefixtures("added")
def test_what_was_not_watched_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    path.write_bytes(without(recorded(path), BlockType.ASPECTS))
    assert switches_of(Run.load(path)) is None
    assert "Context switches: " in str(json.loads(reported(path, "--json"))["unknown"])


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"switches":{}}',
        b'{"switches":{"voluntary":-1,"involuntary":0}}',
        b"[" * 100_000,
    ],
)
def test_a_document_that_makes_no_sense_is_refused_as_a_whole(damaged: bytes) -> None:
    writer = RunWriter(run_id=1)
    for name, items in {**ONE_PHASE, "SPANS": [span_item()]}.items():
        writer.append(BlockType[name], items)
    writer.write_document(BlockType.STATE, encode_state(State(spans=1, phases_recorded=1)))
    writer.write_document(BlockType.ASPECTS, damaged)
    run = Run.from_bytes(writer.data)
    assert switches_of(run) is None
    lead = "what was noted of context switches was left out: "
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
    for every in ("processor", "collector"):  # which every recording has
        del shared[every]
    for some in ("startup", "outputs"):  # the first one of a process, and one with what writes
        shared.pop(some, None)
    assert shared == {"a": {"b": 2}, "b_2": {}, "c": []}
    assert not Run.load(path).notes
