# SPDX-License-Identifier: Apache-2.0
"""What the recorder's own thread takes, beside the threads of peers."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.background_threads import LOADS, TOOLS, Load, thread_figures
from benchmarks.effort import size
from benchmarks.gpu.figure import Figure

_SECONDS = size(5.0, 0.5)


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_background_threads(benchmark: BenchmarkFixture, load: Load) -> None:
    found: list[Figure] = []
    missing: dict[str, str] = {}

    def measure() -> None:
        for tool in TOOLS:
            if load in tool.loads:
                try:
                    found.extend(thread_figures(tool, load, _SECONDS))
                except RuntimeError as error:
                    missing[tool.name] = str(error)

    benchmark.pedantic(measure, rounds=1)  # type: ignore[no-untyped-call]
    benchmark.extra_info["title"] = f"threads beside training, {load.name}"
    benchmark.extra_info["figures"] = [figure.to_dict() for figure in found]
    benchmark.extra_info["missing"] = missing
