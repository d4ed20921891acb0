# SPDX-License-Identifier: Apache-2.0
"""Families of programs: named distributions from which programs are drawn.

All of them draw the same kind of program: a step of 1 to 300 ms on the device, in which forward,
backward and optimizer launch 20 to 400 kernels, with a loader, reads of results and copies. What a
family is named after, its programs have for certain, and more of it. Sizes are those of real
programs: 5 to 40 us of host time per launch, kernels of 2 us and more, host work of a few per cent
to several times the step, batches of 10 KB to 200 MB over a bus of 3 to 25 bytes per ns.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace

from pyinstrument_gpu.core.sync_kind import SyncKind
from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.loader import LoaderOptions
from tests.helpers.simulator.operations import (
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
from tests.helpers.simulator.program import Program, RecorderOptions

MS = 1_000_000
FAMILIES = (
    "syncs",
    "nested",
    "bimodal",
    "stalls",
    "copy stream",
    "ranks",
    "workers",
    "deep queue",
    "warm-up",
    "validation",
    "sampled",
    "clock error",
    "cpu only",
    "launch bound",
    "accumulation",
    "epochs",
    "mixed",
    "hand-over",
    "pauses",
    "slow start",
    "unwatched",
    "lost times",
    "busy processor",
)
_READS = (SyncKind.ITEM, SyncKind.FLOAT, SyncKind.CPU, SyncKind.TOLIST, SyncKind.BOOL)
_MAX_KERNELS = 50_000


def drawn(family: str, seed: int) -> Program:
    """The program of a family with this seed."""
    if family not in FAMILIES:
        raise ValueError(f"no family {family!r}: there are {', '.join(FAMILIES)}")
    return _Draw(family, seed).program()


@dataclass
class _Draw:
    """A program under way."""

    family: str
    seed: int
    places: int = 0
    sites: int = 0
    rng: random.Random = field(init=False)
    features: set[str] = field(init=False)
    device_ns: float = 0.0
    launch_ns: float = 0.0
    kernels: int = 0
    jitter: float = 0.0
    step_ns: float = 0.0
    accumulates: int = 0
    taken_part: float = -1.0
    quantum_ns: float = 0.0

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.family} {self.seed}")
        self.features = {self.family}
        if self.family == "mixed":
            before = FAMILIES[: FAMILIES.index("mixed")]
            others = [each for each in before if each != "cpu only"]
            self.features |= set(self.rng.sample(others, self.rng.randint(2, 5)))

    # --- the whole ---

    def program(self) -> Program:
        rng = self.rng
        is_deep = "deep queue" in self.features
        is_cpu = "cpu only" in self.features
        # How long the host takes for the launches of a step, against what the device does.
        ratio = self.log_uniform(0.03, 1.2)
        self.launch_ns = self.log_uniform(5_000, 40_000)
        kernels = self.log_uniform(20, 500)
        if "launch bound" in self.features:
            ratio, self.launch_ns = self.log_uniform(0.8, 4), self.log_uniform(8_000, 40_000)
            kernels = self.log_uniform(50, 500)
        if "hand-over" in self.features:
            ratio, kernels = self.log_uniform(0.1, 1), self.log_uniform(50, 300)
            self.launch_ns = self.log_uniform(5_000, 20_000)
        if is_deep:
            ratio, self.launch_ns = self.log_uniform(0.1, 0.7), self.log_uniform(4_000, 15_000)
            kernels = self.log_uniform(800, 2000)
        # At least a millisecond of work, of kernels of at least 2 us.
        least_ns = max(1 * MS, 2_000 * kernels)
        self.device_ns = min(max(kernels * self.launch_ns / ratio, least_ns), 300 * MS)
        self.kernels = round(kernels)
        self.jitter = self.log_uniform(0.01, 0.3)
        self.step_ns = max(self.device_ns, self.launch_ns * self.kernels)
        steps = rng.randint(80, 160)
        steps = max(30, min(steps, _MAX_KERNELS // self.kernels))

        data, body = self.step()
        ranks = rng.choice((2, 2, 3, 4)) if "ranks" in self.features else 1
        between: list[Operation] = []
        if rng.random() < 0.4:
            between.append(Work(self.place(), self.host(self.step_ns * rng.uniform(0, 0.05))))
        if rng.random() < (0.5 if "syncs" in self.features else 0.15):
            between.append(self.read(every=rng.choice((1, 1, 5, 10))))
        recorder, loader, periodic = self.recorder(), self.loader(), self.periodic(steps)
        if loader.epoch is not None and rng.random() < 0.5:
            # As automatic phases show it; else the loop has the wait in `data`.
            periodic = (*periodic, Periodic("data start", loader.epoch, 1, (BeginEpoch(),)))
        has_warm_up = "warm-up" in self.features
        return Program(
            seed=rng.randrange(2**31),
            steps=steps,
            step=(*data, *body),
            loader=loader,
            between=tuple(between),
            periodic=periodic,
            has_device=not is_cpu,
            queue_depth=1024,
            latency_ns=rng.randint(2_000, 8_000),
            wake_ns=rng.randint(1_000, 8_000),
            warm_up_steps=rng.randint(2, 10) if has_warm_up else rng.choice((0, 0, 1)),
            warm_up_factor=self.log_uniform(5, 100) if has_warm_up else self.log_uniform(1, 5),
            ranks=ranks,
            recorder=recorder,
        )

    def step(self) -> tuple[list[Operation], list[Operation]]:
        rng = self.rng
        has_copy_stream = "copy stream" in self.features
        data: list[Operation] = []
        taken: list[Operation] = [NextBatch()]
        if rng.random() < 0.3:
            taken.append(Work(self.place(), self.host(self.step_ns * rng.uniform(0, 0.02))))
        if has_copy_stream:
            # A prefetcher hands out the batch whose copy is under way, and begins the next one's.
            data.append(Phase("data", (AwaitStaged(), *taken, self.staging())))
        else:
            data.append(Phase("data", tuple(taken)))
            copies = self.copies()
            if copies:
                is_named = rng.random() < 0.8
                data += [Phase("h2d", tuple(copies))] if is_named else copies
        shares = {"forward": rng.uniform(0.2, 0.4), "loss": rng.uniform(0, 0.05)}
        shares["optimizer"] = rng.uniform(0.02, 0.2)
        shares["backward"] = 1 - sum(shares.values())
        body: list[Operation] = []
        for name in ("zero_grad", "forward", "loss", "backward", "clip", "optimizer", "metrics"):
            if name == "zero_grad":
                if rng.random() < 0.4:
                    share = 0.005
                else:
                    continue
            elif name in ("clip", "metrics"):
                if rng.random() < 0.6:
                    continue
                share = rng.uniform(0.005, 0.1)
            else:
                share = shares[name]
            inside = self.inside(name, share)
            if name == "backward" and "ranks" in self.features:
                inside = self.with_collectives(inside)
            is_named = name != "loss" or rng.random() < 0.5
            every = self.accumulated() if name in ("clip", "optimizer") else 1
            body += [Phase(name, tuple(inside), every)] if is_named else inside
        for _ in range(self.read_count()):
            self.put_read(body)
        if "pauses" in self.features:
            body.append(self.read())
        if "unwatched" in self.features:
            self.put_flush(body)
        return data, body

    # --- parts ---

    def inside(self, name: str, share: float) -> list[Operation]:
        """What a phase does: launches in one to four parts, some in phases of their own, and host
        work that launches nothing."""
        rng = self.rng
        is_nested = rng.random() < (0.9 if "nested" in self.features else 0.25)
        parts = rng.randint(2, 4) if is_nested and share > 0.1 else rng.randint(1, 2)
        body: list[Operation] = []
        for part in range(parts):
            here: list[Operation] = [self.launches(share / parts)]
            if rng.random() < 0.3:
                amount_ns = self.step_ns * share * self.log_uniform(0.01, 0.5)
                here.insert(rng.randint(0, 1), Work(self.place(), self.host(amount_ns)))
            if is_nested and rng.random() < 0.6:
                inner: Operation = Phase(f"{name}_{'abcd'[part]}", tuple(here))
                if "nested" in self.features and rng.random() < 0.3:
                    inner = Phase(f"{name}_outer", (inner,))
                body.append(inner)
            else:
                body += here
        return body

    def launches(self, share: float) -> Launches:
        rng = self.rng
        count = max(1, round(self.kernels * share))
        is_heavy = "bimodal" in self.features or rng.random() < 0.2
        if is_heavy and rng.random() < 0.5:
            sizes = [rng.paretovariate(1.2) for _ in range(count)]
        elif is_heavy:
            sizes = [rng.choice((1.0, rng.uniform(10, 100))) for _ in range(count)]
        else:
            sizes = [self.log_uniform(1, 100) for _ in range(count)]
        unit_ns = self.device_ns * share / sum(sizes)
        kernels_ns = tuple(max(1_000.0, size * unit_ns) for size in sizes)
        is_bimodal = "bimodal" in self.features and rng.random() < 0.6
        stalls = "stalls" in self.features and rng.random() < 0.5
        device = Duration(
            1.0,
            spread=self.jitter / 2,
            second_share=rng.uniform(0.05, 0.5) if is_bimodal else 0.0,
            second_factor=self.log_uniform(1.5, 8),
            stall_share=rng.uniform(0.01, 0.1) / count if stalls else 0.0,
            stall_ns=self.step_ns * self.log_uniform(0.05, 0.5),
            stall_alpha=rng.uniform(1.1, 2.5),
        )
        host = self.host(self.launch_ns * self.log_uniform(0.6, 1.6), stalls_per=count)
        return Launches(self.place(), host, kernels_ns, device)

    def with_collectives(self, inside: list[Operation]) -> list[Operation]:
        rng = self.rng
        is_overlapped = rng.random() < 0.7
        takes_ns = self.device_ns * self.log_uniform(0.005, 0.3)
        body: list[Operation] = []
        for operation in inside:
            device = Duration(takes_ns / len(inside), spread=self.jitter)
            body += [operation, Reduce(self.place(), self.call(), device, is_overlapped)]
        return [*body, AwaitReduced()]

    def read_count(self) -> int:
        if "syncs" in self.features:
            return self.rng.randint(1, 6)
        if "nested" in self.features:
            return self.rng.randint(1, 4)
        return self.rng.choice((0, 0, 1, 1, 2, 3))

    def read(self, every: int = 1) -> Read:
        site = self.site()
        kind = self.rng.choice(_READS)
        size = 4 if self.rng.random() < 0.8 else round(self.log_uniform(64, 4 * MS))
        copy_ns = round(1_500 + size / 5)
        return Read(self.place(), site, kind, self.call(), copy_ns, size, every)

    def put_read(self, body: list[Operation]) -> None:
        """A read somewhere: between phases, in one, or in one inside of that, between launches."""
        rng = self.rng
        number = rng.randrange(len(body) + 1)
        at = body[min(number, len(body) - 1)]
        go_in = 0.8 if "nested" in self.features else 0.55
        if isinstance(at, Phase) and rng.random() < go_in:
            inner = list(at.body)
            self.put_read(inner)
            body[body.index(at)] = replace(at, body=tuple(inner))
        elif isinstance(at, Launches) and len(at.kernels_ns) > 1 and rng.random() < 0.5:
            cut = rng.randrange(1, len(at.kernels_ns))
            place = body.index(at)
            first = Launches(self.place(), at.host, at.kernels_ns[:cut], at.device)
            second = Launches(self.place(), at.host, at.kernels_ns[cut:], at.device)
            body[place : place + 1] = [first, self.read(self.how_often()), second]
        else:
            body.insert(number, self.read(self.how_often()))

    def put_flush(self, body: list[Operation]) -> None:
        """The allocator gives memory back in a phase, in each step or now and then; or something
        else waits for the device there."""
        phases = [each for each in body if isinstance(each, Phase) and each.every == 1]
        at = self.rng.choice(phases)
        often = self.rng.choice((1, 1, 4, 16))
        where = self.rng.randint(0, len(at.body))
        flush = Phase("grow", (Flush(is_counted=self.rng.random() < 0.7),), often)
        inner = at.body[:where] + (flush.body if flush.every == 1 else (flush,)) + at.body[where:]
        body[body.index(at)] = replace(at, body=inner)

    def how_often(self) -> int:
        return self.rng.choice((1, 1, 1, 1, 1, 10))

    def copies(self) -> list[Operation]:
        rng = self.rng
        made: list[Operation] = []
        for _ in range(rng.choice((0, 1, 1, 2))):
            kind = rng.choice((SyncKind.H2D_PAGEABLE,) * 3 + (SyncKind.H2D_PINNED,))
            is_non_blocking = kind == SyncKind.H2D_PAGEABLE and rng.random() < 0.25
            pageable, pinned = rng.uniform(3, 8), rng.uniform(10, 25)
            most = max(20_000.0, min(200 * MS, self.step_ns * 0.4 * pageable))
            size = round(self.log_uniform(10_000, most))
            made.append(
                Copy(
                    self.place(),
                    self.site(),
                    kind,
                    self.call(),
                    size,
                    pageable,
                    pinned,
                    is_non_blocking,
                )
            )
        return made

    def staging(self) -> StageBatch:
        copy_ns = self.step_ns * self.log_uniform(0.05, 1.5)
        return StageBatch(self.place(), self.call(), Duration(copy_ns, spread=self.jitter))

    def loader(self) -> LoaderOptions:
        rng = self.rng
        workers = rng.choice((0, 0, 0, 1, 2, 4))
        if self.features & {"workers", "epochs"}:
            workers = rng.choice((1, 2, 3, 4, 8))
        # What the loader takes for a batch, against the step.
        ratio = (
            self.log_uniform(0.3, 2) if "workers" in self.features else self.log_uniform(0.01, 1)
        )
        fetch_ns = self.log_uniform(20_000, 300_000)
        if "hand-over" in self.features:
            # Batches are nearly always there.
            workers, ratio = rng.choice((2, 4, 8)), self.log_uniform(0.05, 0.7)
            fetch_ns = self.log_uniform(60_000, 1_500_000)
        make_ns = self.step_ns * ratio * max(1, workers)
        stalls = "stalls" in self.features and rng.random() < 0.6
        make = Duration(
            make_ns,
            spread=rng.uniform(0.02, 0.6),
            second_share=rng.uniform(0.02, 0.2) if "bimodal" in self.features else 0.0,
            second_factor=self.log_uniform(2, 10),
            stall_share=rng.uniform(0.01, 0.1) if stalls else 0.0,
            stall_ns=make_ns,
        )
        startup_ns = round(self.step_ns * self.log_uniform(0.5, 8)) if workers else 0
        if "slow start" in self.features:
            workers = workers or rng.choice((1, 2, 4))
            startup_ns = round(self.step_ns * self.log_uniform(3, 30))
        pauses = "pauses" in self.features
        return LoaderOptions(
            make,
            workers=workers,
            prefetch_factor=rng.choice((2, 2, 2, 4)),
            fetch=Duration(fetch_ns, spread=rng.uniform(0.05, 0.4)),
            fork_ns=round(startup_ns * rng.uniform(0.05, 0.5)),
            startup_ns=startup_ns,
            epoch=rng.randint(10, 40) if "epochs" in self.features else None,
            pause_every=rng.randint(15, 40) if pauses else None,
            pause_ns=round(self.step_ns * self.log_uniform(3, 30)) if pauses else 0,
        )

    def periodic(self, steps: int) -> tuple[Periodic, ...]:
        rng = self.rng
        found: list[Periodic] = []
        if "validation" in self.features or rng.random() < 0.1:
            body: list[Operation] = []
            if rng.random() < 0.7:
                data_ns = self.step_ns * self.log_uniform(0.01, 0.3)
                body.append(Phase("data", (MakeBatch(self.place(), self.host(data_ns)),)))
            body.append(Phase("forward", (self.launches(0.3),)))
            if rng.random() < 0.8:
                body.append(self.read())
            every, turns = rng.choice((10, 20, 30)), rng.randint(2, 20)
            found.append(Periodic("eval", min(every, steps // 2), turns, tuple(body)))
        if rng.random() < (0.4 if "validation" in self.features else 0.1):
            write_ns = self.step_ns * self.log_uniform(0.5, 20)
            saved = (self.read(), Work(self.place(), self.host(write_ns)))
            found.append(Periodic("checkpoint", steps // 3, 1, saved))
        return tuple(found)

    def recorder(self) -> RecorderOptions:
        rng = self.rng
        every: int | None = rng.choice((1, 1, None))
        if "sampled" in self.features:
            every = rng.choice((None, None, 2, 3, 5, 8, 16, 32, 64))
        if "slow start" in self.features:
            every = rng.choice((3, 9, 27, 27))
        uncertainty_ns = round(self.log_uniform(500, 8_000))
        if "clock error" in self.features:
            uncertainty_ns = round(self.log_uniform(5_000, 300_000))
        return RecorderOptions(
            times_device="cpu only" not in self.features and rng.random() < 0.93,
            watches="cpu only" not in self.features and rng.random() < 0.95,
            every=every,
            record_ns=rng.randint(1_000, 2_500),
            event_ns=rng.randint(300, 1_200),
            resolution_ns=rng.choice((32, 500)),
            uncertainty_ns=uncertainty_ns,
            drift=rng.uniform(-100e-6, 100e-6),
            lost_share=rng.uniform(0.02, 0.4) if "lost times" in self.features else 0.0,
            knows_program=rng.random() < 0.9,
        )

    def accumulated(self) -> int:
        """In every so-manieth step the optimizer steps."""
        if "accumulation" not in self.features:
            return 1
        self.accumulates = self.accumulates or self.rng.choice((2, 4, 8))
        return self.accumulates

    # --- numbers ---

    def place(self) -> int:
        self.places += 1
        return self.places

    def site(self) -> int:
        self.sites += 1
        return self.sites - 1

    def log_uniform(self, least: float, most: float) -> float:
        return math.exp(self.rng.uniform(math.log(least), math.log(max(least, most))))

    def host(self, typical_ns: float, stalls_per: int = 1) -> Duration:
        rng = self.rng
        stalls = "stalls" in self.features and rng.random() < 0.5
        if "busy processor" in self.features:
            return self.preempted(typical_ns)
        return Duration(
            typical_ns,
            spread=self.jitter,
            stall_share=rng.uniform(0.01, 0.1) / stalls_per if stalls else 0.0,
            stall_ns=self.step_ns * self.log_uniform(0.05, 0.5),
            stall_alpha=rng.uniform(1.1, 2.5),
        )

    def preempted(self, typical_ns: float) -> Duration:
        """What the host takes if other programs have the processor for a part of the time, a few
        milliseconds each time. It is the same part for all that it does."""
        if self.taken_part < 0:
            self.taken_part = self.rng.uniform(0.2, 0.9)
            self.quantum_ns = self.log_uniform(1 * MS, 4 * MS)
        # A stall takes three times its scale in the mean.
        share = typical_ns * self.taken_part / (1 - self.taken_part) / (3 * self.quantum_ns)
        stalls = min(1.0, share)
        return Duration(typical_ns, self.jitter, 0.0, 1.0, stalls, self.quantum_ns, 1.5, True)

    def call(self) -> Duration:
        return Duration(self.rng.uniform(5_000, 25_000), spread=0.1)
