# SPDX-License-Identifier: Apache-2.0
"""The page as text: whole, honest and safe, whatever the run holds. Without a browser."""

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.core.file import MAGIC
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.syncs import Syncs
from pyinstrument_gpu.errors import ExportError, MissingDependencyError
from pyinstrument_gpu.page.comparison_view import comparison_view
from pyinstrument_gpu.page.page import comparison_page, html_page, page_beside, write_page
from pyinstrument_gpu.parts.words import duration
from pyinstrument_gpu.report.comparison import comparison_report
from tests.helpers.made_recording import Recording
from tests.helpers.made_runs import rank, run_of, runs
from tests.page.runs import HOSTILE, MS, STEP_NS, metrics, training

pytest.importorskip("jinja2", reason="jinja2 is not installed")

_VOID = {"meta", "link", "input", "br", "line", "path"}


class Reading(HTMLParser):
    """What a page holds: its text, its elements, and the texts of its scripts. Fails where elements
    are not closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self.open and self.open[-1] == "script" else self.texts).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.texts))

    @property
    def data(self) -> Any:
        return json.loads(self.scripts[0])

    def rows(self) -> list[str | None]:
        """What the rows of its tables are called."""
        return [of["data-name"] for tag, of in self.elements if tag == "tr" and "data-name" in of]


def page_of(*shown: Run) -> Reading:
    text = html_page(shown, [f"run{i}.gpurun" for i in range(len(shown))])
    text.encode()  # no lone surrogate
    return Reading(text)


def test_the_page_says_what_the_report_says() -> None:
    run = training(**metrics([2.5, 1.25]))
    page = page_of(run)

    # Whatever the terminal shows is there, but for headings, bars of # and the spread of savings.
    headings = r"[-#]*|(Where the step goes|What a change could save): .*|removed|p10|p90"
    for line in run.report(verbose=True, width=1000).splitlines():
        for cell in re.split(r" {2,}", line.strip()):
            if not re.fullmatch(headings, cell):
                assert cell in page.text, cell


@pytest.mark.parametrize(("parents", "is_nested"), [([-1, 0, -1], True), ([-1, -1, -1], False)])
def test_own_times_are_shown_where_phases_nest(parents: list[int], is_nested: bool) -> None:
    texts = page_of(training(path_parents=parents)).texts
    headers = texts[texts.index("ms per step") : texts.index("times per call, log axis")]
    assert ("self" in headers) is is_nested


def test_times_of_a_device_are_shown_where_there_is_one() -> None:
    alone = training(on_device=False)
    alone.syncs = Syncs(watched_ns=((0, alone.duration_ns),))
    for run, has_device in ((training(), True), (alone, False)):
        texts = page_of(run).texts
        headers = texts[texts.index("ms per step") : texts.index("times per call, log axis")]
        assert ("device" in headers) is has_device
        assert "blocked" not in headers  # not known of any phase, or of no interest


def test_it_asks_for_nothing() -> None:
    page = page_of(training())

    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "poster", "srcset"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:")), (tag, target)
    (policy,) = (of["content"] for _, of in page.elements if "http-equiv" in of)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_names_of_strangers_are_text() -> None:
    run = training(
        names=[HOSTILE, "a\nb\x1b[31m", "c" * 5_000],
        environment={"command": [HOSTILE], "host": HOSTILE, "rank": 3},
        notes=[HOSTILE],
        metric_names=[HOSTILE],
        metrics=metrics([1.0, math.nan])["metrics"],
    )
    text = html_page([run], [HOSTILE])
    page = Reading(text)

    assert [tag for tag, _ in page.elements].count("script") == 2
    assert "alert(1)" in page.text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert page.data["runs"][0]["series"]["phases"][1]["path"].startswith("<%2Fscript>")
    assert "<" not in page.scripts[0]


@pytest.mark.parametrize(
    "run",
    [
        run_of([]),
        Run(),
        Run.empty("nothing was recorded"),
        training([]),
        training([STEP_NS]),
        training([0, 0, 0]),
        training(on_device=False),
        training(syncs=None, environment={}),
        training(spans=None, span_self_ns=None),
        training(**metrics([math.nan, math.inf, -math.inf])),
        training(complete=False, notes=["cut short"]),
        training(operations=Operations(profiled=((4, 6),))),
    ],
    ids=[
        *("empty", "bare", "failed", "no-steps", "one-step", "no-time", "no-device"),
        *("nothing-known", "no-spans", "not-finite", "cut", "profiled"),
    ],
)
def test_every_run_has_a_page(run: Run) -> None:
    page = page_of(run)

    for sentence in run.notes:
        assert sentence in page.text
    assert "What is missing" in page.text


@settings(max_examples=12)
@given(runs(with_modules=True))
def test_any_run_has_a_page(run: Run) -> None:
    page_of(run)


@pytest.mark.parametrize("version", [0, pytest.param(3, marks=pytest.mark.thorough), 9])
def test_a_file_that_was_cut_off_has_a_page(version: int) -> None:
    recording = Recording(seed=version)
    for data in (recording.versions[version], recording.versions[version][:-1_000]):
        run = Run.from_bytes(data)
        assert "the recording was not stopped" in page_of(run).text or run.complete


def test_two_hundred_phases_are_shown_and_the_others_counted() -> None:
    count = 300
    whole = training([STEP_NS] * 2)
    spans = np.repeat(whole.spans[:1], count)
    spans["path"] = spans["phase"] = np.arange(count)
    run = training(
        names=[f"phase {i}" for i in range(count)],
        path_parents=[-1] * count,
        path_names=range(count),
        spans=spans,
        span_self_ns=np.ones(count, np.int64),
        steps=whole.steps,
        syncs=None,
    )
    text = html_page([run], ["many.gpurun"])
    page = Reading(text)

    assert page.rows()[:200] == [f"phase {i}" for i in range(200)]
    assert "and 100 more paths" in page.text
    assert len(text) < 2_000_000


def test_runs_of_one_job_have_one_timeline() -> None:
    whole = training()
    names = ("names", "path_parents", "path_names", "steps", "duration_ns")
    parts = {name: getattr(whole, name) for name in names}
    ranks = [rank(i, i * MS, whole.spans, **parts) for i in range(2)]
    for run in ranks:
        run.environment["world_size"] = 2
    page = page_of(*ranks)

    assert [each["runs"] for each in page.data["timelines"]] == [["rank 0", "rank 1"]]
    assert "Job of 2 ranks" in page.text
    assert [each["numbers"] for each in page_of(training(), whole).data["timelines"]] == [[0], [1]]


def sides(after_ns: int) -> tuple[list[Run], list[Run]]:
    """Three runs on each side, those before with steps of 10 ms."""
    return (
        [training([STEP_NS + noise] * 20) for noise in (0, 1_000, 2_000)],
        [training([after_ns + noise] * 20) for noise in (0, 1_000, 2_000)],
    )


@pytest.mark.parametrize("after_ns", [STEP_NS // 2, 2 * STEP_NS])
def test_a_comparison_says_what_the_terminal_says(after_ns: int) -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    before, after = sides(after_ns)
    comparison = compare(before, after)
    page = Reading(comparison_page(comparison, before, after, list("abcdef")))

    for line in comparison_report(comparison, 1_000).splitlines():
        for cell in re.split(r" {2,}", line.strip()):
            assert cell.removeprefix("! ") in page.text or re.fullmatch("-*", cell), cell
    steps, backward = (
        next(one["of"] for one in page.data["overlaid"] if one["label"] == name)
        for name in ("steps", "backward")
    )
    for of in (steps, backward):
        assert [sum(column[2] for column in of[side]) for side in ("before", "after")] == [60, 60]


def test_what_flows_left_is_what_arrives_or_is_saved() -> None:
    pytest.importorskip("scipy", reason="scipy is not installed")
    before, after = sides(STEP_NS // 2)
    comparison = compare(before, after)
    view = comparison_view(comparison, before, after, list("abcdef"))

    left, right = (
        [end for end in view["flow"] if end.is_left is is_left] for is_left in (True, False)
    )
    assert [end.name for end in left] == [
        "backward",
        "forward",
        "forward/attention",
        "outside phases",
    ]
    assert [end.name for end in right] == ["outside phases, outside steps", "saved"]
    assert sum(end.height for end in left) == pytest.approx(sum(end.height for end in right), abs=3)
    saved_ns = comparison.left_ns - comparison.arrived_ns
    assert left[0].text == "-2.50 ms per step"
    assert right[1].text == f"{duration(saved_ns)} per step"


def test_a_run_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "train.gpurun"
    path.write_bytes(MAGIC)
    with pytest.raises(ExportError, match="is a run file and would be replaced"):
        write_page("page", path)


def test_error_names_the_page_that_was_asked_for(tmp_path: Path) -> None:
    page = tmp_path / "missing" / "a.html"
    with pytest.raises(FileNotFoundError) as caught:
        write_page("page", page)
    assert caught.value.filename == str(page)


def test_only_a_page_is_replaced_without_being_asked(tmp_path: Path) -> None:
    page = page_beside(tmp_path / "train.gpurun")
    assert page == tmp_path / "train.html"
    write_page(html_page([training()], ["train.gpurun"]), page)
    assert page_beside(tmp_path / "train.gpurun") == page
    page.write_text("<title>Somebody's notes</title>")
    with pytest.raises(ExportError, match="is no page of a run"):
        page_beside(tmp_path / "train.gpurun")


def test_without_jinja_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match="pip install jinja2"):
        html_page([training()], ["a"])


def test_a_long_name_beside_the_flow_keeps_its_end() -> None:
    """The names of two phases of one module differ at their ends only."""
    pytest.importorskip("scipy", reason="scipy is not installed")
    names = ["forward", "attention", "backward of the transformer's encoder, with checkpoints"]
    before, after = (
        [training([ns + noise] * 20, names=names) for noise in (0, 1_000, 2_000)]
        for ns in (STEP_NS, STEP_NS // 2)
    )
    view = comparison_view(compare(before, after), before, after, list("abcdef"))
    labels = {end.name: end.label for end in view["flow"]}
    assert labels[names[2]] == "…r's encoder, with checkpoints"
    assert labels["forward/attention"] == "forward/attention"
    dots = sorted((place, text) for side in view["dots"].values() for text, place in side)
    assert (dots[0][1], dots[-1][1]) == (view["dots_from"], view["dots_to"])
