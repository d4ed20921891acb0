# SPDX-License-Identifier: Apache-2.0
"""The plug-in of docs/architecture.md, an aspect and an exporter: installed, and used."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from jsonschema.validators import validator_for

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_step
from pyinstrument_gpu.cli import main
from pyinstrument_gpu.core.file.blocks import BlockType
from pyinstrument_gpu.core.file.framing import read_blocks
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native
from tests.helpers.encoders import encode_state
from tests.helpers.forged_file import without
from tests.helpers.plugins import on_the_path
from tests.helpers.run_items import ONE_PHASE, span_item
from tests.helpers.run_writer import RunWriter

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin"
SCHEMAS = Path(__file__).parents[2] / "docs" / "make_report_schema.py"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which pip has installed the example."""
    # Not from where it lies: what setuptools builds would stay there.
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(EXAMPLE, source)
    site = tmp_path_factory.mktemp("site")
    install = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", str(site), str(source)], check=True
    )
    return site


@pytest.fixture
def added(site: Path) -> Iterator[None]:
    with on_the_path(site):
        yield


def recorded(path: Path, *names: str) -> bytes:
    """The file of a recording of two steps with these aspects of plug-ins."""
    with pig.record(path, aspects=names):
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
    known = switches_of(Run.from_bytes(recorded(path, "switches")))
    assert "Context switches\n" in reported(path)
    printed = json.loads(reported(path, "--json"))
    assert printed["switches"]["involuntary"] == known.involuntary
    made = runpy.run_path(str(SCHEMAS))
    schema = json.loads(made["schema_text"](made["PRINTED"][0]))
    assert "the program's threads lost their processor" in json.dumps(schema)
    validator_for(schema)(schema).validate(printed)
    reported(path, "--html")
    assert "It was interrupted " in (tmp_path / "a.html").read_text("utf-8")


def test_a_program_is_run_with_it_and_exported_by_it(site: Path, tmp_path: Path) -> None:
    program = "import pyinstrument_gpu as pig\nfor _ in pig.gpu_steps(range(2)): pass\n"
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "pyinstrument_gpu"]
    environment = os.environ | {"PYTHONPATH": f"{site}:{EXAMPLE.parents[1]}"}

    def printed(*arguments: str) -> str:
        done = subprocess.run(
            [*command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    printed("run", "-q", "--aspect", "switches", "-o", "a.gpurun", "train.py")
    assert "It was interrupted " in printed("report", "-v", "a.gpurun")
    printed("export", "a.gpurun", "a.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [(line["phase"], line["count"]) for line in lines] == [("data", 2)]


@pytest.mark.usefixtures("added")
def test_what_was_not_watched_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.gpurun"
    path.write_bytes(without(recorded(path, "switches"), BlockType.ASPECTS))
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


def test_without_it_the_file_is_read_and_says_nothing_of_it(site: Path, tmp_path: Path) -> None:
    with on_the_path(site):
        data = recorded(tmp_path / "a.gpurun", "switches")
    run = Run.from_bytes(data)
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
    for every in ("processor", "collector", "stacks", "setup_calls"):  # which every recording has
        del shared[every]
    for some in ("startup", "outputs"):  # the first one of a process, and one with what writes
        shared.pop(some, None)
    assert shared == {"a": {"b": 2}, "b_2": {}, "c": []}
    assert not Run.load(path).notes
