# SPDX-License-Identifier: Apache-2.0
"""What tests on a GPU need: one, and the driver's own library in a process of their own."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

import pyinstrument_gpu as pig

if TYPE_CHECKING:
    from tests.helpers.cuda_kernels import CudaKernels

_HERE = Path(__file__).parent

Timed = Callable[[], AbstractContextManager[pig.Recording]]


def why_not() -> str | None:
    """Why these tests can't run in this process, or None."""
    if not torch.cuda.is_available():
        return f"needs a GPU that PyTorch can use; torch is {torch.__version__}"
    if os.environ.get("PYINSTRUMENT_GPU_LIBCUDA"):
        return "PYINSTRUMENT_GPU_LIBCUDA names another driver; run tests/gpu by itself: make gpu"
    if "tests.helpers.simulated_cuda" in sys.modules:
        return "other tests have loaded the simulated driver; run tests/gpu by itself: make gpu"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker("gpu")
            # PyTorch's warnings, as of its sync debug mode, are not what is tested.
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def gpu() -> None:
    """Skips where there is no GPU; with REQUIRE_GPU=1 fails."""
    reason = why_not()
    if reason is None:
        return
    if os.environ.get("REQUIRE_GPU") == "1":
        pytest.fail(f"REQUIRE_GPU=1: {reason}")
    pytest.skip(reason)


@pytest.fixture(autouse=True)
def _on_a_gpu(gpu: None) -> Iterator[None]:
    yield
    # What one test left on the device is no other's.
    torch.cuda.synchronize()


@pytest.fixture(scope="session")
def kernels(gpu: None) -> "CudaKernels":
    """Kernels whose times are known."""
    from tests.helpers.cuda_kernels import CudaKernels

    return CudaKernels()


@pytest.fixture
def timed(kernels: "CudaKernels") -> Timed:
    """Starts a recording that times every step and phase on the device."""
    return lambda: pig.record(device_timing_budget=math.inf)
