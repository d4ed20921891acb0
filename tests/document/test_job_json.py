# SPDX-License-Identifier: Apache-2.0
"""The report of a job as JSON: its schema holds, and the terminal says nothing that it has not."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pyinstrument_gpu.document.job import JobDocument
from pyinstrument_gpu.document.json_text import MOST_ROWS, json_text
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.job import job_overview, job_report
from tests.document.jobs import JOBS, MadeJob, many, one_late
from tests.helpers.documents import read_document

ROOT = Path(__file__).parents[2]
MAKE_SCHEMA = runpy.run_path(str(ROOT / "docs" / "make_report_schema.py"))
SCHEMA = json.loads(MAKE_SCHEMA["JOB_SCHEMA_FILE"].read_text())


def members_of(job: MadeJob, **options: Any) -> Any:
    return json.loads(json_text(job.document(), **options))


@pytest.mark.parametrize("name", JOBS)
def test_documents_fulfil_the_schema(name: str) -> None:
    jsonschema.validate(members_of(JOBS[name]()), SCHEMA)


@pytest.mark.parametrize(
    "broken",
    [{"version": "1"}, {"verdict": None}, {"stragglers": {"pattern": "late"}}, {"ranks": []}],
)
def test_schema_refuses_what_is_no_document(broken: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(members_of(one_late()) | broken, SCHEMA)


def test_schema_is_up_to_date() -> None:
    """`python docs/make_report_schema.py` writes it; test_json.py looks after the page."""
    assert MAKE_SCHEMA["job_schema_text"]() == MAKE_SCHEMA["JOB_SCHEMA_FILE"].read_text()


def test_each_key_is_explained() -> None:
    for name, found in SCHEMA["$defs"].items():
        assert found["description"], name
        for key, described in found.get("properties", {}).items():
            assert described.get("description"), f"{name}.{key}"


@pytest.mark.parametrize("name", JOBS)
def test_terminal_report_says_nothing_that_the_json_has_not(name: str) -> None:
    job = JOBS[name]()
    read = read_document(JobDocument, members_of(job, most_rows=None))
    shown = printed(job_overview(read, 120), 120)
    assert shown == job_report(job.document(), width=120, color=False)


def test_of_many_ranks_those_that_matter_are_kept() -> None:
    job = many()
    members, ranks = members_of(job), len(job.data.ranks)
    assert members["ranks"][0]["remarks"] == ["waited for", "slowest in data"]
    assert members["ranks"][0]["rank"] == 700
    assert (len(members["ranks"]), members["left_out"]["ranks"]) == (MOST_ROWS, ranks - MOST_ROWS)
    assert len(json_text(job.document())) < 11_000
