# SPDX-License-Identifier: Apache-2.0
"""The report as JSON: its schema holds, and nothing is in the terminal report that it has not."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyinstrument_gpu.document.document import Document, document_of
from pyinstrument_gpu.document.json_text import json_text
from pyinstrument_gpu.document.one_step import StepDocument, step_document
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.one_step import one_step
from pyinstrument_gpu.report.overview import overview
from pyinstrument_gpu.run import Run
from tests.document.programs import RUNS, full_run, run_of_phases
from tests.helpers.documents import read_document

ROOT = Path(__file__).parents[2]
MAKE_SCHEMA = runpy.run_path(str(ROOT / "docs" / "make_report_schema.py"))
SCHEMA = json.loads(MAKE_SCHEMA["SCHEMA_FILE"].read_text())


def members_of(run: Run, **options: Any) -> Any:
    return json.loads(json_text(document_of(run, "a file.gpurun"), **options))


@pytest.mark.parametrize("name", RUNS)
def test_documents_fulfil_the_schema(name: str) -> None:
    run = RUNS[name]()
    jsonschema.validate(members_of(run), SCHEMA)
    for step in run.steps.array["index"][:1].tolist():
        jsonschema.validate(json.loads(json_text(step_document(run, step))), SCHEMA)


@pytest.mark.parametrize(
    "broken",
    [
        {"version": "1"},
        {"verdict": None},
        {"steps": {"count": 3}},
        {"notes": []},
        {"left_out": {"phases": 0}},
    ],
)
def test_schema_refuses_what_is_no_document(broken: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(members_of(full_run()) | broken, SCHEMA)


def test_schema_and_its_page_are_up_to_date() -> None:
    """`python docs/make_report_schema.py` writes both."""
    assert MAKE_SCHEMA["schema_text"]() == MAKE_SCHEMA["SCHEMA_FILE"].read_text()
    assert MAKE_SCHEMA["page_text"]() == MAKE_SCHEMA["PAGE"].read_text()


def test_each_key_is_explained() -> None:
    for name, found in SCHEMA["$defs"].items():
        assert found["description"], name
        for key, described in found["properties"].items():
            assert described.get("description") or key in OBVIOUS, f"{name}.{key}"


OBVIOUS = {
    *("about", "calls", "count", "device", "edit", "file", "function", "kind", "line", "module"),
    *("modules", "name", "path", "samples", "total_ns", "mean_ns", "p50_ns", "p95_ns", "uuid"),
    *("sampled", "quantile_steps", "has_unfinished_device_work", "timed_calls"),
}
"""Keys of which the name says it all, or a neighbour's description."""


@pytest.mark.parametrize("name", RUNS)
def test_terminal_report_says_nothing_that_the_json_has_not(name: str) -> None:
    run = RUNS[name]()
    read = read_document(Document, members_of(run, most_rows=None))
    assert printed(overview(read, 120), 120) == run.report(width=120, color=False)


def test_report_of_a_step_says_nothing_that_the_json_has_not() -> None:
    run = full_run()
    read = read_document(StepDocument, json.loads(json_text(step_document(run, 3))))
    assert printed(one_step(read, 120), 120) == run.report(step=3, width=120, color=False)


def test_long_lists_are_cut() -> None:
    run = run_of_phases(30)
    cut, whole = members_of(run, most_rows=10), members_of(run, most_rows=None)
    assert cut["left_out"]["phases_without_steps"] == 20
    assert cut["phases_without_steps"] == whole["phases_without_steps"][:10]
    assert len(whole["phases_without_steps"]) == 30
    assert "left_out" not in whole


def test_a_common_run_is_short() -> None:
    """4,000 tokens of a language model are 11,000 bytes of it, and more: 2.8 to 3.0 bytes a token
    were counted with a public vocabulary. What a window of torch.profiler adds comes on top."""
    run = full_run()
    whole = len(json_text(document_of(run)))
    run.operations = None
    assert len(json_text(document_of(run))) < 11_000
    assert whole < 12_500
