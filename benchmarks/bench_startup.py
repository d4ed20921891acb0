# SPDX-License-Identifier: Apache-2.0
"""What a user waits for before anything is done: the import, and the report of the demo's file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.contender import Contender, timed
from benchmarks.effort import size
from benchmarks.gpu.figure import Figure
from benchmarks.race import race

DEMO = Path(__file__).parents[1] / "examples" / "digits.py"
ROUNDS = 30
IMPORT_MS = 30
REPORT_MS = 250
BARE = Contender("a bare interpreter", timed(lambda: _python("-c", "pass")))


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)


def _importing(*modules: str) -> Callable[[], int]:
    return timed(lambda: _python("-c", f"import {', '.join(modules)}"))


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file that `make demo` writes."""
    path = tmp_path_factory.mktemp("demo") / "digits.gpurun"
    _python(str(DEMO), "--output", str(path), *size((), ("--epochs", "1")))
    return path


def test_import(benchmark: BenchmarkFixture) -> None:
    ours = Contender("import pyinstrument_gpu", _importing("pyinstrument_gpu"), baseline=BARE)
    peer = Contender("import numpy", _importing("numpy"), baseline=BARE)
    row = race(benchmark, "startup: more than a bare interpreter takes", ours, [peer], ROUNDS)[0]
    figure = Figure("import pyinstrument_gpu", row.best_ns / 1e6, "ms", goal=IMPORT_MS)
    benchmark.extra_info["figures"] = [figure.to_dict()]


def test_report(benchmark: BenchmarkFixture, demo_run: Path) -> None:
    ours = Contender(
        "pyinstrument-gpu report",
        timed(lambda: _python("-m", "pyinstrument_gpu", "report", str(demo_run))),
    )
    peers = [
        Contender("import numpy, click, rich.table", _importing("numpy", "click", "rich.table")),
        BARE,
    ]
    row = race(
        benchmark, "startup: the report of the demo's run, whole process", ours, peers, ROUNDS
    )[0]
    figure = Figure("pyinstrument-gpu report", row.best_ns / 1e6, "ms", goal=REPORT_MS)
    benchmark.extra_info["figures"] = [figure.to_dict()]
