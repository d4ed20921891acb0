# SPDX-License-Identifier: Apache-2.0
"""What stands in pytest-benchmark's JSON, and what several benchmarks need."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.machine import describe_machine
from benchmarks.million_spans import record_million_spans
from benchmarks.pinning import pinned


def pytest_configure(config: pytest.Config) -> None:
    # pytest-benchmark's own table has our batches without their peers.
    config.option.benchmark_quiet = True


def pytest_benchmark_update_machine_info(machine_info: dict[str, Any]) -> None:
    # Its own has the machine's name.
    machine_info.clear()
    machine_info.update(describe_machine())


def pytest_benchmark_update_json(output_json: dict[str, Any]) -> None:
    # The commit stands with the machine; this has the names of a folder and a branch.
    del output_json["commit_info"]
    for benchmark in output_json["benchmarks"]:
        del benchmark["stats"]["data"]


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
