# SPDX-License-Identifier: Apache-2.0
"""The examples run, and examples/README.md shows what they print."""

import re
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from docs.make_examples import DEMO, PAGE, README, block, demo_report, printed

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
    on_page = block(f"{name} prints").search(PAGE.read_text("utf-8"))
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
def test_readme_names_the_line_that_the_demo_is_slow_at(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = demo_report(tmp_path, "--epochs", "30")
    shown = block("demo prints").search(README.read_text("utf-8"))
    assert shown is not None
    lines = DEMO.read_text("utf-8").splitlines()
    slow = next(number for number, line in enumerate(lines, 1) if "random.gauss" in line)
    for report in (text, shown[0]):
        report = " ".join(report.split())
        assert re.search(
            rf"\d+% in data \(\d+% of it in Digits.add_noise, demo.py:{slow}\)", report
        )
        assert f"make Digits.add_noise (demo.py:{slow}) twice as fast" in report
    assert "Edits like these are tried by: pyinstrument-gpu try demo.py" in shown[0]
    # Which small phases give way to other lines depends on what they take this time.
    assert rows_of(text)[0] == rows_of(shown[0])[0] == "data"


def test_the_loop_in_the_readme_runs_and_prints_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    snippet = README.read_text("utf-8").partition("## Your own loop")[2]
    code = snippet.partition("```python\n")[2].partition("```")[0]
    model = torch.nn.Linear(4, 2)
    names = {
        "loader": [(torch.randn(8, 4), torch.randint(0, 2, (8,)))] * 12,
        "loss_function": torch.nn.functional.cross_entropy,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
    }
    exec(code, names)
    printed_text = capsys.readouterr().out
    assert rows_of(printed_text)[:4] == ["data", "forward", "backward", "optimizer"]
    assert pig.Run.load(tmp_path / "train.gpurun").steps_ended == 12
