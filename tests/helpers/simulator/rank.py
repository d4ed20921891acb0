# SPDX-License-Identifier: Apache-2.0
"""One rank of a simulated program: its training thread, its streams and its loader."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.simulator.draws import Draws
from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.loader import Loader
from tests.helpers.simulator.operations import (
    STAGED_AT_ONCE_BYTES,
    AwaitReduced,
    AwaitStaged,
    BeginEpoch,
    Copy,
    Flush,
    Launches,
    MakeBatch,
    NextBatch,
    Operation,
    Periodic,
    Phase,
    Read,
    Reduce,
    StageBatch,
    Work,
)
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.recorder import Recorder
from tests.helpers.simulator.stream import Kernels, Stream

_STAGING_BYTES_PER_NS = 8
_LOADER_EDITS = ("data", "workers")
_HANDED_OVER = 1_000_000
"""Added to the place where a batch is made, it is the place where a worker hands it over."""
_Do = Callable[[int], None]


@dataclass(frozen=True)
class _Act:
    """What an operation does in a turn, in every so-manieth; or a collective."""

    every: int
    do: _Do | None
    reduce: Reduce | None = None
    calls_ns: Sequence[int] = ()
    durations_ns: Sequence[int] = ()


class _Acts:
    """Acts in order."""

    def __init__(self, acts: Sequence[_Act]) -> None:
        self._due = [
            [act for act in acts if (turn + 1) % act.every == 0]
            for turn in range(math.lcm(*(act.every for act in acts)))
        ]

    def due(self, turn: int) -> list[_Act]:
        """Those of a turn."""
        return self._due[turn % len(self._due)]


class Rank:
    """One rank under way. Each act of the host moves `now_ns` on."""

    def __init__(
        self,
        program: Program,
        number: int,
        draws: Draws,
        timed_steps: Sequence[bool] | None = None,
    ) -> None:
        self._program = program
        self._draws = draws
        self.number = number
        self._edits = program.edits if number < program.edited_ranks else frozenset()
        self._compute = Stream(program.queue_depth, program.latency_ns)
        self._copies = Stream(program.queue_depth, program.latency_ns)
        self._collectives = Stream(program.queue_depth, program.latency_ns)
        self._staged_ns = 0
        self._path: list[str] = []
        self._is_inside = True
        self._waited_ns = 0
        self.recorder = Recorder(program, self._compute, timed_steps)
        self.now_ns = 0
        turns = program.steps
        self._warm_up = 1 + (program.warm_up_factor - 1) * np.where(
            np.arange(turns) < program.warm_up_steps, 0.5 ** np.arange(turns), 0.0
        )
        self._loader: Loader | None = None
        if program.loader is not None:
            times_ns = self._times_ns(0, turns, program.loader.make, program.loader.fetch)
            self._loader = Loader(
                program.loader,
                *times_ns,
                is_instant=Edit("data") in self._edits,
                forks=not self._edits & {Edit(kind, is_inside=False) for kind in _LOADER_EDITS},
                is_fast=Edit("workers") in self._edits,
            )

    @property
    def done_ns(self) -> int:
        """When the host and all streams are done."""
        streams = (self._compute, self._copies, self._collectives)
        return max(self.now_ns, *(stream.free_ns for stream in streams))

    def run(self) -> Generator[tuple[int, int], int, None]:
        """The whole program. Yields at each collective when this rank has arrived and what it
        takes, and wants to be sent when it is done."""
        program, recorder = self._program, self.recorder
        self._is_inside = True
        step = _Acts(self._acts(program.step, program.steps, self._warm_up))
        self._is_inside = False
        between = _Acts(self._acts(program.between, program.steps, None))
        periodic = [(each, _Acts(self._periodic(each))) for each in program.periodic]
        for turn in range(program.steps):
            recorder.begin_step(self.now_ns)
            self._waited_ns = 0
            yield from self._do(step, turn)
            recorder.end_step(self.now_ns, self._waited_ns)
            yield from self._do(between, turn)
            for each, acts in periodic:
                times, rest = divmod(turn + 1, each.every)
                if not rest:
                    for again in range(each.turns):
                        yield from self._do(acts, (times - 1) * each.turns + again)

    def _periodic(self, periodic: Periodic) -> list[_Act]:
        turns = self._program.steps // periodic.every * periodic.turns
        return self._acts((Phase(periodic.name, periodic.body),), turns, None)

    def _do(self, acts: _Acts, turn: int) -> Generator[tuple[int, int], int, None]:
        for act in acts.due(turn):
            if act.do is not None:
                act.do(turn)
                continue
            assert act.reduce is not None
            stream = self._collectives if act.reduce.is_overlapped else self._compute
            self.now_ns = stream.room_ns(self.now_ns + act.calls_ns[turn])
            stream.wait_until(self._compute.free_ns)
            arrived_ns = stream.put(self.now_ns, 0)
            done_ns = yield arrived_ns, act.durations_ns[turn]
            stream.last_done_at(done_ns)

    # --- operations become acts ---

    def _acts(
        self,
        body: Sequence[Operation],
        turns: int,
        warm_up: NDArray[np.float64] | None,
        every: int = 1,
    ) -> list[_Act]:
        acts: list[_Act] = []
        for operation in body:
            if isinstance(operation, Phase):
                each = math.lcm(every, operation.every)
                acts.append(_Act(each, self._entering(operation.name)))
                self._path.append(operation.name)
                acts += self._acts(operation.body, turns, warm_up, each)
                self._path.pop()
                acts.append(_Act(each, self._leave))
            elif isinstance(operation, Reduce):
                times_ns = self._times_ns(operation.place, turns, operation.call, operation.device)
                acts.append(_Act(every, None, operation, *times_ns))
            else:
                do = self._doing(operation, turns, warm_up)
                if do is not None:
                    acts.append(_Act(every, do))
        return acts

    def _times_ns(
        self,
        place: int,
        turns: int,
        *durations: Duration,
        scale: NDArray[np.float64] | float = 1.0,
    ) -> list[list[int]]:
        """For each of the durations of a place its time in each turn."""

        def draw(rng: np.random.Generator) -> list[list[int]]:
            return [duration.draw(rng, (turns,), scale).tolist() for duration in durations]

        return self._draws.of(self.number, place, draw)

    def _has(self, kind: str, site: int = -1, path: str = "") -> bool:
        return any(
            Edit(kind, site, path, where) in self._edits for where in (self._is_inside, None)
        )

    def _doing(
        self, operation: Operation, turns: int, warm_up: NDArray[np.float64] | None
    ) -> _Do | None:
        scale = 1.0 if warm_up is None else warm_up
        if isinstance(operation, Work):
            host = operation.host

            def draw_work(rng: np.random.Generator) -> list[list[int]]:
                return [each.tolist() for each in host.draw_with_waits(rng, (turns,), scale)]

            return self._working(*self._draws.of(self.number, operation.place, draw_work))
        if isinstance(operation, MakeBatch):
            if self._has("data"):
                return None
            if self._has("workers") and self._program.loader is not None:
                handed_over = operation.place + _HANDED_OVER
                operation = MakeBatch(handed_over, self._program.loader.fetch)
            return self._doing(Work(operation.place, operation.host), turns, warm_up)
        if isinstance(operation, Launches):
            return self._launching(operation, turns, warm_up)
        if isinstance(operation, Read):
            return self._reading(operation, turns)
        if isinstance(operation, Copy):
            return self._copying(operation, turns)
        if isinstance(operation, NextBatch):
            return self._take_batch
        if isinstance(operation, BeginEpoch):
            return self._begin_epoch
        if isinstance(operation, StageBatch):
            return self._staging(operation, turns)
        if isinstance(operation, Flush):
            return self._flushing(operation)
        if isinstance(operation, AwaitStaged):
            return lambda turn: self._compute.wait_until(self._staged_ns)
        assert isinstance(operation, AwaitReduced)
        return lambda turn: self._compute.wait_until(self._collectives.free_ns)

    def _entering(self, name: str) -> _Do:
        def enter(turn: int) -> None:
            self.now_ns = self.recorder.enter(name, self.now_ns)

        return enter

    def _leave(self, turn: int) -> None:
        self.now_ns = self.recorder.leave(self.now_ns)

    def _working(self, hosts_ns: list[int], waits_ns: list[int]) -> _Do:
        def work(turn: int) -> None:
            self.now_ns += hosts_ns[turn]
            self._waited_ns += waits_ns[turn]

        return work

    def _launching(
        self, operation: Launches, turns: int, warm_up: NDArray[np.float64] | None
    ) -> _Do:
        def draw(rng: np.random.Generator) -> tuple[list[int], list[int], Kernels]:
            shape = (turns, len(operation.kernels_ns))
            hosts_ns, waits_ns = operation.host.draw_with_waits(rng, shape, 1.0)
            kernels_ns = operation.device.draw(rng, shape, np.array(operation.kernels_ns))
            # The first launches compile, choose algorithms and allocate, which is not launching.
            slower = np.zeros(turns) if warm_up is None else warm_up - 1
            warm_ns = np.rint(hosts_ns.sum(axis=1) * slower).astype(np.int64)
            return warm_ns.tolist(), waits_ns.sum(axis=1).tolist(), Kernels(hosts_ns, kernels_ns)

        warm_ns, waits_ns, kernels = self._draws.of(self.number, operation.place, draw)
        is_graph = self._has("launches", path="/".join(self._path))
        stream = self._compute

        def compute(turn: int) -> None:
            self._waited_ns += waits_ns[turn]
            self.now_ns += warm_ns[turn] + kernels.host_ns[turn] + kernels.device_ns[turn]

        def replay(turn: int) -> None:
            # A graph takes one place in the queue.
            self.now_ns = stream.room_ns(self.now_ns + warm_ns[turn])
            stream.put(self.now_ns, kernels.device_ns[turn])

        def launch(turn: int) -> None:
            self._waited_ns += waits_ns[turn]
            self.now_ns = stream.launch(self.now_ns + warm_ns[turn], kernels, turn)

        if not self._program.has_device:
            return compute
        return replay if is_graph else launch

    def _reading(self, operation: Read, turns: int) -> _Do | None:
        if self._has("sync", site=operation.site) or self._has("all syncs"):
            return None
        [calls_ns] = self._times_ns(operation.place, turns, operation.call)

        def read(turn: int) -> None:
            if turn % operation.every:
                return
            if self._program.has_device:
                self._wait(operation.site, calls_ns[turn], operation.copy_ns, operation.size)
            else:
                self.now_ns += calls_ns[turn]

        return read

    def _wait(self, site: int, call_ns: int, copy_ns: int, size: int) -> None:
        """A copy that the host waits for."""
        begin_ns = self.now_ns
        called_ns = self._compute.room_ns(begin_ns + call_ns // 2)
        done_ns = self._compute.put(called_ns, copy_ns)
        self.now_ns = done_ns + self._program.wake_ns + call_ns - call_ns // 2
        self.recorder.sync(site, begin_ns, self.now_ns, size)

    def _flushing(self, operation: Flush) -> _Do:
        def flush(turn: int) -> None:
            self.now_ns = max(self.now_ns, self._compute.free_ns) + self._program.wake_ns
            self.recorder.allocation_retries += operation.is_counted

        return flush

    def _copying(self, operation: Copy, turns: int) -> _Do:
        [calls_ns] = self._times_ns(operation.place, turns, operation.call)
        site, size, stream = operation.site, operation.size, self._compute
        is_pageable = operation.kind == SyncKind.H2D_PAGEABLE
        is_pinned = any(map(self._has, ("all syncs", "copies"))) or self._has("sync", site=site)
        copy_ns = round(
            size / (operation.bytes_per_ns if is_pageable else operation.pinned_bytes_per_ns)
        )
        pinned_ns = round(size / operation.pinned_bytes_per_ns)
        staging_ns = round(size / _STAGING_BYTES_PER_NS)

        def enqueue(turn: int) -> None:
            self.now_ns = stream.room_ns(self.now_ns + calls_ns[turn])
            stream.put(self.now_ns, pinned_ns)

        def wait(turn: int) -> None:
            self._wait(site, calls_ns[turn], copy_ns, size)

        def stage(turn: int) -> None:
            # `non_blocking` from pageable memory. Little is copied with the command, and the host
            # goes on. For more the driver waits for the stream, and the host takes part: piece by
            # piece, so it ends when the device does.
            begin_ns = self.now_ns
            is_little = size <= STAGED_AT_ONCE_BYTES
            self.now_ns = stream.room_ns(
                begin_ns + calls_ns[turn] + (staging_ns if is_little else 0)
            )
            done_ns = stream.put(self.now_ns, copy_ns)
            if not is_little:
                self.now_ns = done_ns + self._program.wake_ns
            self.recorder.sync(site, begin_ns, self.now_ns, size)

        if not self._program.has_device:
            return self._working([0] * turns, [0] * turns)
        if is_pinned:
            return enqueue
        return stage if is_pageable and operation.non_blocking else wait

    def _take_batch(self, turn: int) -> None:
        assert self._loader is not None
        self.now_ns = self._loader.next_ns(self.now_ns)

    def _begin_epoch(self, turn: int) -> None:
        assert self._loader is not None
        self.now_ns = self._loader.begin_epoch(self.now_ns)

    def _staging(self, operation: StageBatch, turns: int) -> _Do:
        calls_ns, copies_ns = self._times_ns(operation.place, turns, operation.call, operation.copy)

        def stage(turn: int) -> None:
            self.now_ns = self._copies.room_ns(self.now_ns + calls_ns[turn])
            self._staged_ns = self._copies.put(self.now_ns, copies_ns[turn])

        return stage
