# SPDX-License-Identifier: Apache-2.0
"""A session's board, shown at its end."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.board import Board, describe_machine
from benchmarks.million_spans import record_million_spans

_BOARD = pytest.StashKey[Board]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--results", type=Path, metavar="FILE", help="write all figures as JSON")


def pytest_configure(config: pytest.Config) -> None:
    # pytest-benchmark's own table has our batches without their peers.
    config.option.benchmark_quiet = True


@pytest.fixture(scope="session")
def board(pytestconfig: pytest.Config) -> Board:
    """Takes the results."""
    board = pytestconfig.stash[_BOARD] = Board(describe_machine())
    return board


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
    terminalreporter.section("benchmarks")
    # 120: wide enough for the table where output is no terminal.
    console = Console(width=120, highlight=False)
    board.show(console)
    results: Path | None = config.getoption("--results")
    if results is not None:
        results.parent.mkdir(parents=True, exist_ok=True)
        results.write_text(json.dumps(board.to_json(), indent=1) + "\n")
