# SPDX-License-Identifier: Apache-2.0
"""Cards say what to do, where, and what that is worth; other lines are a small table."""

import pytest

from pyinstrument_gpu.analysis.advice import Finding, twice_as_fast
from pyinstrument_gpu.page.cards import Card, card_of, card_of_job
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.summary import summary_of
from tests.job.jobs import JOBS, one_late
from tests.page.runs import HOSTILE, training
from tests.page.test_page import Reading

pytest.importorskip("jinja2", reason="jinja2 is not installed")


def finding(kind: str, about: str, edit: str | None, evidence: str = "it takes 3 of 10 ms") -> Card:
    return card_of(Finding(kind, about, 1e6, 3e6, None, 1e7, "step", None, evidence, edit, None))


def test_a_title_is_an_order_with_the_line_of_the_program() -> None:
    jitter = twice_as_fast("Shapes.jitter", "train.py:29", (2e6, 3e6, 1e6), 1e7, "it takes 30%")
    assert card_of(jitter).title == "Make Shapes.jitter (train.py:29) twice as fast"
    assert card_of(jitter).rows == {"how": "", "why": "it takes 30%"}

    sync = finding("advice", ".item() at train.py:57", "read it later; or never")
    assert sync[:4] == (
        "Read it later",
        ".item() at train.py:57",
        "saves 10% to 30% of the step",
        {"how": "or never", "why": "it takes 3 of 10 ms"},
    )
    guide = finding("guide", "use more loader workers", "DataLoader(num_workers=4) at train.py:20")
    assert (guide.title, guide.subject) == ("Use more loader workers", "train.py:20")
    assert guide.rows["how"] == "DataLoader(num_workers=4) at train.py:20"


def test_a_card_says_nothing_twice() -> None:
    slow = "a step takes 4 ms before step 120 and 2 ms from there on"
    card = finding("doubt", "slow steps", f"see what changes: {slow}", f"{slow}; most in data")
    assert (card.title, card.rows["how"], card.kind) == ("See what changes", "", "doubt")


def test_a_card_of_a_job_names_the_line_of_the_straggler() -> None:
    document = one_late().document()
    straggler = document.stragglers.straggler
    assert straggler is not None
    cards = [card_of_job(one, straggler.line) for one in document.findings]
    assert [(card.title, card.subject) for card in cards] == [
        ("See why rank 3 is slower in data", "augment (train.py:44)"),
        ("Wait less for all_reduce of default_pg in backward", ""),
        ("See why rank 2 was late at the start", ""),
    ]
    failures = [one for one in JOBS["broken"]().document().findings if one.kind == "failure"]
    assert card_of_job(failures[0], None).title == "Ranks 0-1 stalled"


def test_what_else_there_is_to_say_is_a_table() -> None:
    run = training()
    text = html_page([run], ["x"])
    lines = [part.text for part in summary_of(document_of(run)).others]  # type: ignore[union-attr]
    assert lines
    for line in lines:
        name, value = line.split(": ", 1)
        assert f"<dt>{name}</dt><dd>{value}</dd>" in text
        assert f"<p>{line}" not in text


def test_names_of_strangers_in_cards_are_text() -> None:
    run = training(names=[HOSTILE, "attention", "backward"])
    text = html_page([run], ["x"])
    assert "<script>alert" not in text
    assert [tag for tag, _ in Reading(text).elements].count("script") == 2
