# SPDX-License-Identifier: Apache-2.0
"""Stands in for torch.cuda.CUDAGraph on the simulated driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tests.helpers.simulated_cuda import SimulatedGraph, SimulatedStream


class FakeCudaGraph:
    """The methods that the package hooks, as torch has them: functions in Python.

    `stream` is the one that is captured and replayed on.
    """

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        self.graph: SimulatedGraph | None = None

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self.stream.begin_capture()

    def capture_end(self) -> None:
        self.graph = self.stream.end_capture()

    def replay(self) -> None:
        if self.graph is None:
            raise RuntimeError("there is nothing to replay")
        self.graph.launch(self.stream)

    def reset(self) -> None:
        self.graph = None

    @contextlib.contextmanager
    def capturing(self) -> Iterator[None]:
        """As torch.cuda.graph does it."""
        with self.stream.as_current():
            self.capture_begin()
            try:
                yield
            finally:
                self.capture_end()
