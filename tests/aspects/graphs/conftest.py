# SPDX-License-Identifier: Apache-2.0
"""The simulated driver, on which graphs are captured and replayed."""

from collections.abc import Iterator

import pytest
import torch

from tests.helpers.device_program import Program, unharmed_cuda
from tests.helpers.fake_graphs import FakeCudaGraph
from tests.helpers.simulated_cuda import SimulatedCuda


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeCudaGraph)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    with unharmed_cuda() as cuda:
        yield Program(cuda)


@pytest.fixture
def cuda(program: Program) -> SimulatedCuda:
    return program.cuda


@pytest.fixture
def graph(cuda: SimulatedCuda) -> FakeCudaGraph:
    return FakeCudaGraph(cuda.devices[0].create_stream())
