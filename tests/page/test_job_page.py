# SPDX-License-Identifier: Apache-2.0
"""The page of a job: its ranks together, above the runs of some of them."""

from dataclasses import replace

import pytest

from pyinstrument_gpu.document.job import JobDocument
from pyinstrument_gpu.page.job_view import MAX_RANKS, job_view, ranks_on_page
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.report.job import job_report
from tests.document.jobs import JOBS, PATHS, many, one_late
from tests.page.runs import HOSTILE, training
from tests.page.test_page import Reading

pytest.importorskip("jinja2", reason="jinja2 is not installed")


def page_of(document: JobDocument, ranks: int = 2) -> Reading:
    runs = [
        training(environment={"rank": rank, "world_size": document.job.world_size})
        for rank in range(ranks)
    ]
    return Reading(html_page(runs, [f"run{rank}.gpurun" for rank in range(ranks)], document))


@pytest.mark.parametrize("name", JOBS)
def test_every_job_has_a_page(name: str) -> None:
    document = JOBS[name]().document()
    page = page_of(document)
    assert document.verdict in page.text
    for finding in document.findings:
        assert finding.about in page.text
        assert finding.evidence in page.text
    for note in document.notes:
        assert note in page.text


def test_the_page_has_the_tables_of_the_report() -> None:
    document = one_late().document()
    page = page_of(document)
    across = job_report(document, 1000, False).split("Phases across ranks")[1].split("Collect")[0]
    for line in across.splitlines()[1:]:
        for cell in line.split():
            if set(cell) != {"-"}:
                assert cell in page.text, cell


def test_who_is_above_the_median_is_coloured() -> None:
    view = job_view(one_late().document(), [0, 1, 2, 3])
    assert view.rank_map is not None
    strengths = {row.rank: [cell.strength for cell in row.cells] for row in view.rank_map.rows}
    place = view.rank_map.phases.index(PATHS[0])
    assert strengths[3][place] > 0
    assert [strengths[rank][place] for rank in range(3)] == [0, 0, 0]
    assert view.embedded == ""


def test_of_many_ranks_a_few_are_on_the_page() -> None:
    document = many().document()
    ranks = ranks_on_page(document)
    assert 700 in ranks
    assert len(ranks) == MAX_RANKS
    view = job_view(document, ranks)
    assert "of 1,024" in view.embedded
    assert "700" in view.embedded
    assert view.rank_map is not None
    assert view.rank_map.left_out == 1024 - len(view.rank_map.rows)
    assert len(html_page([training()], ["x"], document)) < 1_000_000


def test_names_of_strangers_are_text() -> None:
    document = one_late().document()
    phases = (replace(document.phases[0], path=HOSTILE), *document.phases[1:])
    text = html_page([training()], ["x"], replace(document, phases=phases, notes=(HOSTILE,)))
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reading(text).elements].count("script") == 2
