# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from tests.helpers.simulated_cuda import SimulatedCuda, SimulatedStream, simulated_cuda


@pytest.fixture
def cuda() -> Iterator[SimulatedCuda]:
    with simulated_cuda(clock=False) as cuda:
        yield cuda


@pytest.fixture
def stream(cuda: SimulatedCuda) -> SimulatedStream:
    return cuda.devices[0].create_stream()
