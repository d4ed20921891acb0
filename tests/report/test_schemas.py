# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas: documents hold them, other things do not, and each key is explained."""

import json
import runpy
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import ValidationError
from jsonschema.validators import validator_for

from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import MOST_ROWS, json_text
from pyinstrument_gpu.report.one_step import step_document
from tests.job.endings import ENDINGS
from tests.job.jobs import JOBS, one_late
from tests.report.programs import RUNS

MADE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_report_schema.py"))
PRINTED = {one.file: one for one in MADE["PRINTED"]}
SCHEMAS = {file: json.loads((MADE["FOLDER"] / file).read_text()) for file in PRINTED}
VALIDATORS = {file: validator_for(schema)(schema) for file, schema in SCHEMAS.items()}
DOCUMENTS: list[tuple[str, Callable[[], Any]]] = [
    *(("schema.json", lambda run=run: document_of(run())) for run in RUNS.values()),
    ("schema.json", lambda: step_document(RUNS["all"](), 0)),
    *(("job_schema.json", lambda job=job: job().document()) for job in JOBS.values()),
    *(("ending_schema.json", ending) for ending in ENDINGS.values()),
]
OBVIOUS = {
    *("about", "calls", "count", "device", "edit", "file", "function", "kind", "line", "module"),
    *("modules", "name", "path", "samples", "total_ns", "mean_ns", "p50_ns", "p95_ns", "uuid"),
    *("sampled", "quantile_steps", "has_unfinished_device_work", "timed_calls"),
}
"""Keys of which the name says it all, or a neighbour's description."""


def members_of(document: Any, file: str) -> Any:
    return json.loads(json_text(document, MOST_ROWS if PRINTED[file].is_cut else None))


@pytest.mark.parametrize(("file", "make"), DOCUMENTS)
def test_documents_fulfil_their_schema(file: str, make: Callable[[], Any]) -> None:
    VALIDATORS[file].validate(members_of(make(), file))


RUN = cache(lambda: document_of(RUNS["all"]()))
JOB = cache(lambda: one_late().document())


@pytest.mark.parametrize(
    ("file", "make", "broken"),
    [
        ("schema.json", RUN, {"version": "1"}),
        ("schema.json", RUN, {"verdict": None}),
        ("schema.json", RUN, {"steps": {"count": 3}}),
        ("schema.json", RUN, {"notes": []}),
        ("schema.json", RUN, {"left_out": {"phases": 0}}),
        ("job_schema.json", JOB, {"stragglers": {"pattern": "late"}}),
        ("job_schema.json", JOB, {"ranks": []}),
        ("ending_schema.json", ENDINGS["killed"], {"outcome": "who knows"}),
        ("ending_schema.json", ENDINGS["killed"], {"ranks": [{"rank": 0}]}),
    ],
)
def test_schema_refuses_what_is_no_document(
    file: str, make: Callable[[], Any], broken: dict[str, Any]
) -> None:
    with pytest.raises(ValidationError):
        VALIDATORS[file].validate(members_of(make(), file) | broken)


@pytest.mark.parametrize("file", PRINTED)
def test_schemas_are_schemas(file: str) -> None:
    VALIDATORS[file].check_schema(SCHEMAS[file])


def test_schemas_and_their_page_are_up_to_date() -> None:
    """`python docs/make_report_schema.py` writes them."""
    for file, printed in PRINTED.items():
        assert MADE["schema_text"](printed) == (MADE["FOLDER"] / file).read_text()
    assert MADE["page_text"]() == MADE["PAGE"].read_text()


@pytest.mark.parametrize("file", PRINTED)
def test_each_key_is_explained(file: str) -> None:
    obvious = OBVIOUS if file == "schema.json" else ()
    for name, found in SCHEMAS[file]["$defs"].items():
        assert found["description"], name
        for key, described in found.get("properties", {}).items():
            assert described.get("description") or key in obvious, f"{name}.{key}"
