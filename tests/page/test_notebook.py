# SPDX-License-Identifier: Apache-2.0
"""A run as the output of a notebook's cell, and its page in a frame."""

import html
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.syncs import Syncs
from pyinstrument_gpu.errors import ExportError
from pyinstrument_gpu.export.labels import colors_of
from pyinstrument_gpu.page import notebook
from pyinstrument_gpu.page.step_bar import Piece, step_bars
from pyinstrument_gpu.report.document import document_of
from tests.helpers.made_script import Script
from tests.page.runs import HOSTILE, MS, STEP_NS, training

pytest.importorskip("jinja2", reason="jinja2 is not installed")


class Output(HTMLParser):
    """The elements of an output with their attributes, and its words without the style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements[-1][0] != "style":
            self.words += data.split()


def test_a_run_shows_what_its_report_says_without_a_script() -> None:
    run = training()
    text = run._repr_html_()
    output = Output(text)

    assert len(text) < 8_000
    assert not {tag for tag, _ in output.elements} & {"script", "iframe", "link", "img"}
    *lines, _more = run.report(width=1000).splitlines()
    marks = {"--"}
    for line in lines:
        said = [word for word in line.split() if word.strip("-#")]
        assert {*said} - marks <= {*output.words}, line


def test_names_of_strangers_are_text_in_a_cell() -> None:
    text = training(names=[HOSTILE, "attention", "b" * 1_000], notes=[HOSTILE])._repr_html_()

    text.encode()
    assert "<script" not in text and "\u202e" not in text
    assert "alert(1)" in text


@pytest.mark.parametrize("run", [Run(), training([]), training([0, 0]), training(syncs=None)])
def test_every_run_shows_itself(run: Run) -> None:
    assert " ".join(run.report(width=1000).split())[:40] in " ".join(
        Output(run._repr_html_()).words
    )


def test_without_jinja_a_run_shows_the_terminals_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    run = training()

    assert run._repr_html_() == f"<pre>{html.escape(run.report(width=100, color=False))}</pre>"


def test_the_page_is_in_the_output_and_reaches_nothing_around_it() -> None:
    page = training(names=[HOSTILE, 'it\'s & "so"', "backward"]).page(file="a.gpurun", height=300)
    ((tag, frame), *_) = Output(page._repr_html_()).elements

    assert (tag, frame["sandbox"], frame["srcdoc"]) == ("iframe", "allow-scripts", page.html)
    assert "height:300px" in str(frame["style"])
    assert "a.gpurun" in page.html


def test_a_page_too_large_for_a_notebook_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MAX_BYTES", 100_000)
    with pytest.raises(ExportError, match=r"takes 0\.\d MB, .* report --html"):
        training().page()


def bars_of(run: Run) -> dict[str, list[Piece]]:
    return step_bars(document_of(run), colors_of(run))


def test_the_bar_is_the_step() -> None:
    host = bars_of(training())["host"]
    assert [(piece.name, round(piece.share, 3)) for piece in host] == [
        ("forward", 0.2),
        ("forward/attention", 0.2),
        ("backward", 0.2),  # without the wait
        ("outside phases", 0.1),
        ("waiting for the device", 0.3),
    ]
    unwatched = bars_of(training(on_device=False, syncs=None))["host"]
    assert [(piece.name, round(piece.share, 3)) for piece in unwatched] == [
        ("forward", 0.2),
        ("forward/attention", 0.2),
        ("backward", 0.5),
        ("outside phases", 0.1),
    ]


def test_without_a_device_the_bar_has_the_means_of_the_table() -> None:
    """The time budget has only those steps whose spans are all there."""
    run = training(on_device=False)
    run.syncs = Syncs(watched_ns=((0, run.duration_ns),))
    document, colors = document_of(run), colors_of(run)
    assert document.time_budget is not None
    of_others = replace(document.time_budget, entries=document.time_budget.entries[:1])
    bars = step_bars(replace(document, time_budget=of_others), colors)
    assert bars == step_bars(document, colors)
    assert [piece.share for piece in bars["host"]] == [0.2, 0.2, 0.5, 0.1]


def test_of_many_phases_the_smallest_are_one_piece_of_the_bar() -> None:
    script = Script()
    with script.step():
        for number in range(40):
            script.leaf(f"phase {number}", (1 + number) * MS)
    host = bars_of(script.run())["host"]
    assert len(host) == 31
    assert host[-1].name == "other phases"
    assert sum(piece.share for piece in host) == pytest.approx(1)


def test_phases_that_overlap_have_no_bar() -> None:
    run = training([STEP_NS], on_device=False, syncs=None, span_self_ns=np.full(3, STEP_NS))
    assert bars_of(run) == {}
