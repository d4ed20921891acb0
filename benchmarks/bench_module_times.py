# SPDX-License-Identifier: Apache-2.0
"""What times of modules cost on the CPU, beside torch's hooks and torch.profiler."""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from benchmarks.gpu.figure import Figure

pytest.importorskip("torch")

_SECONDS = 20.0


def test_module_times(benchmark: BenchmarkFixture) -> None:
    from benchmarks.module_times import figures

    found: list[Figure] = []
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: found.extend(figures(_SECONDS)), rounds=1
    )
    benchmark.extra_info["title"] = "times of modules"
    benchmark.extra_info["figures"] = [figure.to_dict() for figure in found]
    benchmark.extra_info["missing"] = {}
