# SPDX-License-Identifier: Apache-2.0
"""Stands in for torch.cuda.CUDAGraph, and for what captures the graphs of torch.compile, on the
simulated driver."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from tests.helpers.simulated_cuda import SimulatedGraph, SimulatedStream


class FakeCudaGraph:
    """The methods that the package hooks, as torch has them: functions in Python.

    `stream` is the one that is captured and replayed on.
    """

    def __init__(self, stream: SimulatedStream) -> None:
        self.stream = stream
        self.graph: SimulatedGraph | None = None
        self.interrupt_replay = False

    def capture_begin(self, pool: object = None, capture_error_mode: str = "global") -> None:
        self.stream.begin_capture()

    def capture_end(self) -> None:
        self.graph = self.stream.end_capture()

    def replay(self) -> None:
        if self.graph is None:
            raise RuntimeError("there is nothing to replay")
        self.graph.launch(self.stream)
        if (
            self.interrupt_replay
        ):  # by Ctrl-C, or a hook of torch's that is called behind the launch
            self.interrupt_replay = False
            raise KeyboardInterrupt

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


class FakeTreeManager:
    """What of torch's `CUDAGraphTreeManager` the rest of torch calls. Each function is warmed up,
    then captured, then replayed, with the results of its capture: its inputs may not change."""

    def __init__(self, stream: SimulatedStream) -> None:
        self._stream = stream

    def add_function(
        self, model: Callable[[list[Any]], Any], inputs: list[Any], *_: object
    ) -> tuple[Callable[[list[Any]], Any], Any]:
        graph = FakeCudaGraph(self._stream)
        results: list[Any] = []

        def run(inputs: list[Any]) -> Any:
            if not results:
                with graph.capturing():
                    results.append(model(list(inputs)))
            graph.replay()
            return results[0]

        with self._stream.as_current():
            return run, model(list(inputs))

    def shutdown(self) -> None:
        """There is nothing to free."""
