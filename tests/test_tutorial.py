# SPDX-License-Identifier: Apache-2.0
"""The program of the tutorial runs, and has the phases, steps and waits that the page shows."""

import os
import re
from pathlib import Path

import pytest

import pyinstrument_gpu as pig
from tests.helpers.python_server import run_python

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
PROGRAM = re.compile(r"^<!-- train.py -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CHANGE = re.compile(r"^```diff\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT = re.compile(r"^train\.py:(\d+) ", re.MULTILINE)


def test_the_program_waits_where_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    program = PROGRAM.search(PAGE)
    assert program is not None
    (tmp_path / "train.py").write_text(program[1])
    options = ["--as-if-cuda", "--no-report", "-o", "train.gpurun"]
    command = ["-m", "pyinstrument_gpu", "run", *options, "train.py", "--epochs", "1"]
    done = run_python(
        *command, folder=tmp_path, environment={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    run = pig.Run.load(tmp_path / "train.gpurun")
    # 1797 digits in batches of 32.
    assert run.steps_ended == 57
    assert {"data", "forward", "loss", "backward", "optimizer"} <= {*run.phases}
    lines = {str(site.line) for site in run.syncs.sites}
    assert lines == {*WAIT.findall(PAGE)}


def test_the_change_fits_the_program() -> None:
    program, change = PROGRAM.search(PAGE), CHANGE.search(PAGE)
    assert program is not None and change is not None
    text = program[1]
    for hunk in change[1].split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if not line.startswith("+"))
        assert text.count(before) == 1
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    compile(text, "train.py", "exec")
    assert "rotate(" not in text
