# SPDX-License-Identifier: Apache-2.0
"""The report as JSON: nothing is in the terminal report that it has not."""

import json
from typing import Any

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.document import Document, document_of
from pyinstrument_gpu.report.json_text import MOST_BYTES, json_text
from pyinstrument_gpu.report.one_step import StepDocument, one_step, step_document
from pyinstrument_gpu.report.overview import overview
from tests.helpers.documents import read_document
from tests.report.programs import RUNS, full_run, run_of_phases


def members_of(run: Run, **options: Any) -> Any:
    return json.loads(json_text(document_of(run, "a file.gpurun"), **options))


@pytest.mark.parametrize("name", RUNS)
def test_terminal_report_says_nothing_that_the_json_has_not(name: str) -> None:
    run = RUNS[name]()
    read = read_document(Document, members_of(run, most_rows=None))
    assert printed(overview(read), 120) == run.report(verbose=True, width=120, color=False)


def test_report_of_a_step_says_nothing_that_the_json_has_not() -> None:
    run = RUNS["all"]()
    read = read_document(StepDocument, json.loads(json_text(step_document(run, 3))))
    assert printed(one_step(read), 120) == run.report(step=3, width=120, color=False)


def test_long_lists_are_cut() -> None:
    run = run_of_phases(30)
    cut, whole = members_of(run, most_rows=10), members_of(run, most_rows=None)
    assert cut["left_out"]["phases_without_steps"] == 20
    assert cut["phases_without_steps"] == whole["phases_without_steps"][:10]
    assert len(whole["phases_without_steps"]) == 30
    assert "left_out" not in whole


def test_a_common_run_is_short() -> None:
    """4,300 tokens of a language model are 12,400 bytes of it: 2.8 to 3.0 bytes a token were
    counted with a public vocabulary. What a window of torch.profiler adds comes on top."""
    run = full_run()
    run.environment = {**run.environment, "command": ["train.py"], "arguments": ["train.py"]}
    whole = len(json_text(document_of(run)))
    run.operations = None
    assert len(json_text(document_of(run))) < 12_400
    assert whole < 13_900


@pytest.mark.parametrize(
    "asked",
    [
        {"sections": ["steps", "phases", "savings"]},
        {"sections": ["findings"]},
        {"phase": "phase0"},
    ],
)
def test_where_the_time_goes_takes_four_kibibytes(asked: Any) -> None:
    run = full_run()
    text = json_text(document_of(run, "a file.gpurun"), **asked)
    assert len(text.encode()) <= MOST_BYTES
    whole, found = members_of(run), json.loads(text)
    assert found["verdict"] == whole["verdict"]
    for name in asked.get("sections", ()):
        assert found[name]
    for row in found["phases"] if "phase" in asked else ():
        assert row["path"].split("/")[0] == "phase0"
        assert row in whole["phases"]


def test_of_many_phases_fewer_are_kept() -> None:
    text = json_text(document_of(run_of_phases(300)), 100, ["phases_without_steps"])
    found = json.loads(text)
    assert MOST_BYTES - 400 < len(text.encode()) <= MOST_BYTES
    kept, left_out = len(found["phases_without_steps"]), found["left_out"]["phases_without_steps"]
    assert kept + left_out == 300


def test_what_there_is_not_is_named_with_what_there_is() -> None:
    with pytest.raises(KeyError, match=r"no section 'energies'; there are: version, .*phases"):
        members_of(full_run(), sections=["energies"])
    with pytest.raises(KeyError, match="no phase 'for'; there are: "):
        members_of(full_run(), phase="for")
