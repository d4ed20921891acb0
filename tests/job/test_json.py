# SPDX-License-Identifier: Apache-2.0
"""The reports of a job as JSON: the terminal says nothing that they have not."""

import json
from typing import Any

import pytest

from pyinstrument_gpu.job.ending_report import JobEnding, ending_report
from pyinstrument_gpu.job.report import JobDocument, job_overview, job_report
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.json_text import MOST_ROWS, json_text
from tests.helpers.documents import read_document
from tests.job.endings import ENDINGS
from tests.job.jobs import JOBS, MadeJob, many


def members_of(job: MadeJob, **options: Any) -> Any:
    return json.loads(json_text(job.document(), **options))


@pytest.mark.parametrize("name", JOBS)
def test_terminal_report_says_nothing_that_the_json_has_not(name: str) -> None:
    job = JOBS[name]()
    read = read_document(JobDocument, members_of(job, most_rows=None))
    shown = printed(job_overview(read), 120)
    assert shown == job_report(job.document(), width=120, color=False)


@pytest.mark.parametrize("name", ENDINGS)
def test_why_says_nothing_that_its_json_has_not(name: str) -> None:
    ending = ENDINGS[name]()
    read = read_document(JobEnding, json.loads(json_text(ending, most_rows=None)))
    assert ending_report(read, width=120, color=False) == ending_report(
        ending, width=120, color=False
    )


def test_of_many_ranks_those_that_matter_are_kept() -> None:
    job = many(200, late=150)
    members, ranks = members_of(job), len(job.data.ranks)
    assert members["ranks"][0]["remarks"] == ["waited for", "slowest in data"]
    assert members["ranks"][0]["rank"] == 150
    assert (len(members["ranks"]), members["left_out"]["ranks"]) == (MOST_ROWS, ranks - MOST_ROWS)
    assert len(json_text(job.document())) < 11_000
