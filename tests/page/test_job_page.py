# SPDX-License-Identifier: Apache-2.0
"""The page of a job: its ranks together, above the runs of some of them."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from pyinstrument_gpu.export.labels import COLORS
from pyinstrument_gpu.job.report import JobDocument, job_report
from pyinstrument_gpu.page.cards import card_of_job
from pyinstrument_gpu.page.job_view import MAX_RANKS, STRONGEST, ranks_on_page
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.page.rendering import asset
from tests.job.jobs import JOBS, many, one_late
from tests.page.runs import HOSTILE, STEP_NS, training
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
        assert card_of_job(finding, None).title in page.text
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
    coloured = [
        attributes["title"]
        for _, attributes in page_of(one_late().document(), ranks=4).elements
        if "color-mix" in (attributes.get("style") or "")
    ]
    assert coloured == ["30.0 ms more than the median"]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_numbers_can_be_read_on_the_strongest_colours(theme: int) -> None:
    """By the formula of WCAG 2, for the colour of any phase."""

    def rgb(name: str) -> list[int]:
        text = re.findall(rf"--{name}: #([0-9a-f]{{6}});", asset("page.css"))[theme]
        return [*bytes.fromhex(text)]

    def luminance(color: Sequence[float]) -> float:
        parts = [part / 255 for part in color]
        red, green, blue = (
            p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    share = STRONGEST / 100
    for color in COLORS:
        phase = (color & 0xFFFFFF).to_bytes(3, "big")
        cell = [share * c + (1 - share) * p for c, p in zip(phase, rgb("paper"), strict=True)]
        low, high = sorted((luminance(cell), luminance(rgb("ink"))))
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_of_many_ranks_a_few_are_on_the_page() -> None:
    document = many().document()
    ranks = ranks_on_page(document)
    assert 700 in ranks
    assert len(ranks) == MAX_RANKS
    runs = [training([STEP_NS], environment={"rank": rank, "world_size": 1024}) for rank in ranks]
    text = html_page(runs, [f"run{rank}.gpurun" for rank in ranks], document)
    (embedded,) = re.findall("Below are the runs of (.*) of 1,024;", Reading(text).text)
    assert "700" in embedded
    assert "960 further ranks have no row" in Reading(text).text
    assert len(text) < 1_000_000


def test_names_of_strangers_are_text() -> None:
    document = one_late().document()
    phases = (replace(document.phases[0], path=HOSTILE), *document.phases[1:])
    text = html_page([training()], ["x"], replace(document, phases=phases, notes=(HOSTILE,)))
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reading(text).elements].count("script") == 2
