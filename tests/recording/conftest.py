# SPDX-License-Identifier: Apache-2.0
"""The simulated driver, attached to the recorder."""

from collections.abc import Iterator

import pytest

from tests.helpers.device_program import Program, unharmed_cuda
from tests.helpers.simulated_cuda import SimulatedCuda


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with unharmed_cuda() as cuda:
        yield cuda


@pytest.fixture
def program(cuda: SimulatedCuda) -> Program:
    return Program(cuda)
