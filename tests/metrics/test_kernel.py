# SPDX-License-Identifier: Apache-2.0
"""The kernel compiles for every architecture, without a warning and without a spill."""

from __future__ import annotations

import pytest

from tests.helpers import kernel_spills

ARCHITECTURES = [75, 80, 86, 89, 90, 100, 120]


@pytest.fixture
def nvcc() -> str:
    found = kernel_spills.nvcc()
    if found is None:
        pytest.skip("there is no nvcc on the path or in CUDA_HOME")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_warning_and_no_spill(nvcc: str, architecture: int) -> None:
    kernel_spills.check(nvcc, architecture)


@pytest.mark.thorough
def test_the_source_of_today_compiles(nvcc: str) -> None:
    """The same source by the same compiler is the same kernel: one that was written down is not
    compiled again."""
    if kernel_spills.written().get(kernel_spills.release(nvcc)) != kernel_spills.source():
        kernel_spills.check(nvcc, kernel_spills.ARCHITECTURE)
