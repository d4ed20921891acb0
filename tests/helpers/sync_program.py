# SPDX-License-Identifier: Apache-2.0
"""Training programs at random on the simulated driver, run with their waits and without.

The distribution: 1 to 12 phases a step, each of 1 to 8 kernels of 2 us to 50 ms, evenly by their
logarithm. A phase launches densely, every 5 to 20 us, or sparsely, with 0 to 50 ms before each
kernel. A step has 0 to 4 syncs, each behind one of the kernels, in its phase or after it. It waits
for the loader up to a limit of 0 to 100 ms, each step another time. 50 steps.

With copies, each sync is by even chance one from pageable memory to the device instead, of 4 KB to
16 MB, evenly by their logarithm, at 5 to 20 bytes a nanosecond.
"""

import dataclasses
import random
from dataclasses import dataclass

import numpy as np

from pyinstrument_gpu import gpu_phase, gpu_step
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, blocked_ns, totals_of
from tests.helpers.device_program import Program
from tests.helpers.simulated_cuda import SimulatedCuda

STEPS = 50
MS = 1_000_000
SHORTEST_NS, LONGEST_NS = 2_000, 50 * MS
_MACHINE = {
    "host": "simulated",
    "pid": 4000,
    "cores": 16,
    "python": "3.12.0",
    "platform": "Linux",
    "command": ["train.py"],
    "cwd": "/train",
    "program_folder": "/train",
    "started": "2026-01-01T00:00:00.000+00:00",
}
"""What the recording says of the machine and the process, which are those of the tests."""


@dataclass(frozen=True)
class Launch:
    """A kernel, and what the host does before it."""

    host_ns: int
    device_ns: int


@dataclass(frozen=True)
class Sync:
    """A read of a result behind a kernel: a copy, which waits for all before it. Or a copy to the
    device.

    Attributes:
        phase, launch: after which kernel.
        inside: in its phase, or at its end, outside of it.
        host_ns: what the call costs beside the wait.
        copy_ns: what its copy takes on the device.
        site: its place in the program.
        kind: what it is.
        size: what is copied, in bytes.
        waits: whether the host waits; not for a copy from pinned memory with `non_blocking`.
    """

    phase: int
    launch: int
    inside: bool
    host_ns: int
    copy_ns: int
    site: int
    kind: SyncKind = SyncKind.ITEM
    size: int = 4
    waits: bool = True


@dataclass(frozen=True)
class Made:
    """A program."""

    phases: tuple[tuple[Launch, ...], ...]
    syncs: tuple[Sync, ...]
    loader_ns: tuple[int, ...]

    def without(self, *sites: int) -> "Made":
        """The same without some of its syncs."""
        kept = tuple(sync for sync in self.syncs if sync.site not in sites)
        return dataclasses.replace(self, syncs=kept)

    def with_pinned_copies(self) -> "Made":
        """The same with copies to the device that do not wait; they are made all the same."""
        syncs = tuple(
            dataclasses.replace(sync, waits=sync.kind != SyncKind.H2D_PAGEABLE)
            for sync in self.syncs
        )
        return dataclasses.replace(self, syncs=syncs)

    def launched_at_once(self, phase: int) -> "Made":
        """The same with one of its phases enqueued at once, as a replayed graph is."""
        phases = list(self.phases)
        phases[phase] = tuple(Launch(0, launch.device_ns) for launch in phases[phase])
        return dataclasses.replace(self, phases=tuple(phases))

    def without_loader(self) -> "Made":
        """The same with batches that are there at once."""
        return dataclasses.replace(self, loader_ns=(0,) * len(self.loader_ns))


def draw(seed: int, *, copies: bool = False) -> Made:
    """The program with this number, with reads alone or with copies to the device too."""
    rng = random.Random(seed)
    phases = []
    for _ in range(rng.randint(1, 12)):
        dense = rng.random() < 0.5
        launches = []
        for _ in range(rng.randint(1, 8)):
            host_ns = rng.randint(5_000, 20_000) if dense else rng.randint(0, 50 * MS)
            device_ns = SHORTEST_NS * (LONGEST_NS / SHORTEST_NS) ** rng.random()
            launches.append(Launch(host_ns, round(device_ns)))
        phases.append(tuple(launches))
    syncs = []
    for site in range(rng.randint(0, 4)):
        phase = rng.randrange(len(phases))
        launch = rng.randrange(len(phases[phase]))
        inside = rng.random() < 0.5
        cost_ns, copy_ns = rng.randint(10_000, 20_000), rng.randint(2_000, 5_000)
        syncs.append(Sync(phase, launch, inside, cost_ns, copy_ns, site))
    limit_ns = rng.randint(0, 100 * MS)
    loader_ns = tuple(rng.randint(0, limit_ns) for _ in range(STEPS))
    if copies:
        syncs = [_as_copy(sync, rng) if rng.random() < 0.5 else sync for sync in syncs]
    return Made(tuple(phases), tuple(syncs), loader_ns)


def _as_copy(sync: Sync, rng: random.Random) -> Sync:
    size = round(4096 * 4096 ** rng.random())
    copy_ns = round(size / rng.uniform(5, 20))
    return dataclasses.replace(sync, kind=SyncKind.H2D_PAGEABLE, size=size, copy_ns=copy_ns)


@dataclass(frozen=True)
class Ran:
    """A program that was run.

    Attributes:
        run: what was recorded, its syncs among it.
        elapsed_ns: from the begin of the first step until host and device were done with the last.
        waits_ns: what each sync took, in order.
        kernels_ns: when each kernel began and ended, on the run's axis: what events cannot see.
    """

    run: Run
    elapsed_ns: int
    waits_ns: tuple[int, ...]
    kernels_ns: tuple[tuple[int, int], ...]


class _Runner:
    """A program under way."""

    def __init__(self, made: Made, program: Program) -> None:
        self._made = made
        self._program = program
        self._cuda = program.cuda
        self._stream = program.cuda.default_stream
        self._free_ns = 0
        self.events: list[tuple[int, ...]] = []
        self.kernels_ns: list[tuple[int, int]] = []

    def step(self, step: int) -> None:
        with gpu_step():
            if self._made.loader_ns[step]:
                with gpu_phase("data"):
                    self._cuda.advance(self._made.loader_ns[step])
            for phase, launches in enumerate(self._made.phases):
                with gpu_phase(f"phase{phase}"):
                    for number, launch in enumerate(launches):
                        self._cuda.advance(launch.host_ns)
                        self._launch(launch.device_ns)
                        self._wait(step, phase, number, inside=True)
                for number in range(len(launches)):
                    self._wait(step, phase, number, inside=False)

    def _launch(self, device_ns: int) -> None:
        self._stream.launch(device_ns)
        begin_ns = max(self._free_ns, self._cuda.host_ns - self._program.zero_ns)
        self._free_ns = begin_ns + device_ns
        self.kernels_ns.append((begin_ns, self._free_ns))

    def _wait(self, step: int, phase: int, number: int, *, inside: bool) -> None:
        for sync in self._made.syncs:
            if (sync.phase, sync.launch, sync.inside) != (phase, number, inside):
                continue
            begin_ns = self._cuda.host_ns
            self._cuda.advance(sync.host_ns // 2)
            self._launch(sync.copy_ns)
            if not sync.waits:
                continue
            while self._stream.pending:
                self._cuda.advance(max(0, (self._cuda.next_host_ns() or 0) - self._cuda.host_ns))
            self._cuda.advance(sync.host_ns - sync.host_ns // 2)
            duration_ns = self._cuda.host_ns - begin_ns
            begin_ns -= self._program.zero_ns
            self.events.append((begin_ns, duration_ns, sync.size, sync.site, phase, inside, step))


def ran(made: Made, cuda: SimulatedCuda) -> Ran:
    """Runs a program on a simulated driver as it is, with a recording."""
    program = Program(cuda)
    runner = _Runner(made, program)
    with program.recording(reading_ns=0) as recording:
        begin_ns = cuda.host_ns
        for step in range(len(made.loader_ns)):
            runner.step(step)
            recording.flush(0)
        cuda.run_dry()
        elapsed_ns = cuda.host_ns - begin_ns
        recording.flush(1)
    run = recording.run
    first = next(r for r in cuda.records() if r.stream == cuda.default_stream.handle)
    assert first.done_host_ns is not None
    _place(run, first.done_host_ns - program.zero_ns)
    _add_syncs(run, made, runner.events)
    run.environment |= _MACHINE
    run.environment["program_facts"] = {"loader_workers": 0, "other_streams": False, "ranks": 1}
    run.environment.pop("revision", None)
    run.harvester_cpu_ns, run.memory = run.duration_ns // 500, Memory()
    waits_ns = tuple(event[1] for event in runner.events)
    return Ran(run, elapsed_ns, waits_ns, tuple(runner.kernels_ns))


def _place(run: Run, first_ns: int) -> None:
    """Gives the run the clock that the simulation has, by its first event on the program's stream:
    while the time stands still for the recorder, its own comparisons of the clocks tell little."""
    known = run.span_device_ns >= 0
    begin_ns = run.span_device_clock_ns
    run_ns = np.array([first_ns, first_ns + 1], np.int64)
    points = run_ns + begin_ns[known].min() - first_ns
    clock = DeviceClock(0, points, run_ns, np.zeros(2, np.int64))
    run.device_clocks = (clock,)
    end_ns = begin_ns + run.span_device_ns
    run.spans["device_begin_ns"] = np.where(known, clock.on_run_axis(begin_ns), -1)
    run.spans["device_end_ns"] = np.where(known, clock.on_run_axis(end_ns), -1)


def _add_syncs(run: Run, made: Made, events: list[tuple[int, ...]]) -> None:
    """As the watch would have seen them."""
    array = np.zeros(len(events), SYNC_DTYPE)
    for row, (begin_ns, duration_ns, size, site, phase, inside, step) in zip(
        array, events, strict=True
    ):
        path = run.paths.index(f"phase{phase}") if inside else -1
        row["begin_ns"], row["duration_ns"], row["bytes"] = begin_ns, duration_ns, size
        row["site"], row["path"], row["step"] = site, path, step
    kinds = {sync.site: sync.kind for sync in made.syncs}
    sites = 1 + max(kinds, default=-1)
    totals = totals_of(array, sites)
    run.syncs = Syncs(
        sites=tuple(
            SyncSite("train.py", 10 + site, "train", kinds.get(site, SyncKind.ITEM), False, total)
            for site, total in enumerate(totals)
        ),
        events=array,
        watched_ns=((0, run.duration_ns),),
    )
    run.spans["blocked_ns"] = blocked_ns(run.spans, run.syncs)
