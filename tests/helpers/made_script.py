# SPDX-License-Identifier: Apache-2.0
"""Programs that are made up, on a clock of their own."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, blocked_ns, totals_of


class Script:
    """A made-up program on a clock of its own."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.paths: dict[tuple[str, ...], int] = {}
        self.names: dict[str, int] = {}
        self.spans: list[tuple[int, ...]] = []
        self.self_ns: list[int] = []
        self.steps: list[tuple[Any, ...]] = []
        self.step_index = -1
        self.stack: list[str] = []
        self.child_ns = [0]

    def work(self, duration_ns: int) -> None:
        self.now_ns += duration_ns

    def path(self, *names: str) -> int:
        for end in range(1, len(names) + 1):
            self.paths.setdefault(names[:end], len(self.paths))
            self.names.setdefault(names[end - 1], len(self.names))
        return self.paths[names]

    def span(self, names: tuple[str, ...], begin_ns: int, end_ns: int, thread: int = 0) -> None:
        """A span given by its times."""
        self._append(self.path(*names), names, self.step_index, begin_ns, end_ns, thread, 0)

    def _append(
        self,
        path: int,
        names: tuple[str, ...],
        step: int,
        begin_ns: int,
        end_ns: int,
        thread: int,
        child_ns: int,
    ) -> None:
        flags = int(step >= 0 and thread == 0)
        name, depth = self.names[names[-1]], len(names) - 1
        times = (begin_ns, end_ns, -1, -1, -1)
        self.spans.append((name, path, step, depth, thread, -1, -1, *times, flags))
        self.self_ns.append(end_ns - begin_ns - child_ns)

    @contextmanager
    def phase(self, name: str, duration_ns: int = 0) -> Iterator[None]:
        self.stack.append(name)
        names = tuple(self.stack)
        path, begin_ns, step = self.path(*names), self.now_ns, self.step_index
        self.child_ns.append(0)
        yield
        self.work(duration_ns)
        child_ns = self.child_ns.pop()
        self._append(path, names, step, begin_ns, self.now_ns, 0, child_ns)
        self.stack.pop()
        self.child_ns[-1] += self.now_ns - begin_ns

    def leaf(self, name: str, duration_ns: int) -> None:
        with self.phase(name, duration_ns):
            pass

    @contextmanager
    def step(self, samples: float = np.nan, complete: bool = True) -> Iterator[None]:
        begin_ns = self.now_ns
        self.step_index = len(self.steps)
        yield
        self.steps.append((self.step_index, begin_ns, self.now_ns, samples, 1, complete, 0))
        self.step_index = -1

    def run(self, **changes: Any) -> Run:
        parts: dict[str, Any] = {
            "names": list(self.names),
            "path_parents": [self.paths.get(names[:-1], -1) for names in self.paths],
            "path_names": [self.names[names[-1]] for names in self.paths],
            "threads": [Thread(11, "MainThread"), Thread(12, "loader")],
            "spans": np.array(self.spans, SPAN_DTYPE),
            "span_self_ns": np.array(self.self_ns, np.int64),
            "steps": Steps(np.array(self.steps, STEP_DTYPE)),
            "duration_ns": self.now_ns,
            "harvester_cpu_ns": self.now_ns // 500,
            "environment": {
                "command": ["train.py", "--epochs", "3"],
                "host": "trainbox",
                "rank": 0,
                "world_size": 8,
                "torch": "2.13.0",
                "gpus": [],
                "overhead": {"phase_ns": 31.4, "step_ns": 210.4},
            },
        }
        return Run(**(parts | changes))


class WatchedScript(Script):
    """One whose waits for the device are watched.

    They are given in the order of their lines, of which the first is line 1.
    """

    def __init__(self, *kinds: SyncKind) -> None:
        super().__init__()
        self.kinds = kinds
        self.waits: list[tuple[int, ...]] = []

    def wait(self, line: int, duration_ns: int, size: int = 4) -> None:
        self.waits.append((self.now_ns, duration_ns, size, line - 1, -1, self.step_index, 0))
        self.work(duration_ns)

    def run(self, **changes: Any) -> Run:
        events = np.array(self.waits, SYNC_DTYPE)
        totals = totals_of(events, len(self.kinds))
        sites = tuple(
            SyncSite("train.py", line, "train", kind, False, total)
            for line, (kind, total) in enumerate(zip(self.kinds, totals, strict=True), 1)
        )
        syncs = Syncs(sites, events, ((0, self.now_ns),))
        run = super().run(**{"syncs": syncs, "environment": {"gpus": []}, **changes})
        run.spans["blocked_ns"] = blocked_ns(run.spans, run.syncs)
        return run
