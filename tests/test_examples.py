# SPDX-License-Identifier: Apache-2.0
"""The examples run, and examples/README.md shows what they print."""

import re
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from docs.make_examples import PAGE, ROOT, block, printed

QUICKLY = {
    "language_model": ["--steps", "4", "--accumulate", "2", "--evaluate-every", "2"],
    "image_classifier": ["--epochs", "1", "--batch-size", "256"],
    "ddp": ["--steps", "5"],
}
STEPS = {"language_model": 4, "image_classifier": 8, "ddp": 5}
TABLE = re.compile(r"^(?:phase|.s per step) .*?^step ", re.MULTILINE | re.DOTALL)


def rows_of(text: str) -> list[str]:
    """The first words of the first table's rows: its phases."""
    found = TABLE.search(text)
    assert found is not None
    return [line.split()[0] for line in found[0].splitlines()[1:] if line[:1].isalpha()]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n == "ddp" else n for n in QUICKLY]
)
def test_page_shows_the_phases_that_the_example_prints(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = printed(name, tmp_path, *QUICKLY[name])
    on_page = block(name).search(PAGE.read_text("utf-8"))
    assert on_page is not None
    # Which small phases give way to other lines depends on what they take this time.
    shown = rows_of(on_page[0])
    assert [row for row in shown if row in rows_of(text)] == rows_of(text)
    assert on_page[0].count("\n") > 15
    files = sorted(tmp_path.glob("*.gpurun"))
    assert len(files) == (2 if name == "ddp" else 1)
    for file in files:
        run = pig.Run.load(file)
        assert run.complete and run.steps_ended == STEPS[name]
        phases = {path.rpartition("/")[2] for path in run.paths} | {"outside", "step"}
        assert name == "ddp" or {row.split("/")[-1] for row in shown} <= phases


@pytest.mark.thorough
def test_readme_shows_the_report_that_the_demo_prints(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = printed("digits", tmp_path, "--epochs", "2")
    readme = (ROOT / "README.md").read_text("utf-8")
    shown = readme[readme.index("```text\ndigits.py") :]
    assert rows_of(shown) == rows_of(text)
    for line in (
        r"^\.?.s per step +mean +p95 +%$",
        r"^digits\.py ",
        r"^Outside steps: ",
        r"^More: ",
    ):
        assert re.search(line, text, re.MULTILINE) and re.search(line, shown, re.MULTILINE), line
