# SPDX-License-Identifier: Apache-2.0
"""A session's board, shown at its end."""

import json
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import pytest
from rich.console import Console

from benchmarks.board import Board
from benchmarks.machine import describe_machine
from benchmarks.million_spans import record_million_spans
from benchmarks.pinning import pinned

_BOARD = pytest.StashKey[Board]()
_BEGIN_S = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write all figures as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # pytest-benchmark's own table has our batches without their peers.
    config.option.benchmark_quiet = True
    config.stash[_BEGIN_S] = monotonic()


@pytest.fixture(scope="session")
def board(pytestconfig: pytest.Config) -> Board:
    """Takes the results."""
    board = pytestconfig.stash[_BOARD] = Board(describe_machine())
    return board


@pytest.fixture
def one_core() -> Iterator[None]:
    """This thread has a core for itself; the recorder's own is kept off it."""
    with pinned():
        yield


@pytest.fixture(scope="session")
def million_spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run file of a million spans."""
    path = tmp_path_factory.mktemp("million") / "run.gpurun"
    record_million_spans(path)
    return path


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    board = config.stash.get(_BOARD, None)
    if board is None:
        return
    board.seconds = round(monotonic() - config.stash[_BEGIN_S], 1)
    terminalreporter.section("benchmarks")
    # 120: wide enough for the table where output is no terminal.
    console = Console(width=120, highlight=False)
    board.show(console)
    results: Path | None = config.getoption("--results")
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(board.to_json(), indent=1) + "\n")
