# SPDX-License-Identifier: Apache-2.0
"""The program of the tutorial runs, and has the phases, steps and waits that the page shows."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import pyinstrument_gpu as pig

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text("utf-8")
PROGRAM = re.compile(r"^<!-- train.py -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAIT = re.compile(r"^train\.py:(\d+) ", re.MULTILINE)


def test_the_program_waits_where_the_page_says(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    program = PROGRAM.search(PAGE)
    assert program is not None
    (tmp_path / "train.py").write_text(program[1])
    options = ["--as-if-cuda", "--no-report", "-o", "train.gpurun"]
    command = ["-m", "pyinstrument_gpu", "run", *options, "train.py", "--epochs", "1"]
    subprocess.run([sys.executable, *command], cwd=tmp_path, check=True, capture_output=True)
    run = pig.Run.load(tmp_path / "train.gpurun")
    # 1797 digits in batches of 32.
    assert run.steps_ended == 57
    assert {"data", "forward", "loss", "backward", "optimizer"} <= {*run.phases}
    lines = {str(site.line) for site in run.syncs.sites}
    assert lines == {*WAIT.findall(PAGE)}
