# SPDX-License-Identifier: Apache-2.0
"""The recorder of a simulated run: what it sees, what that costs, and the run that it makes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.core.clocks import DeviceClock
from pyinstrument_gpu.core.file.state import DeviceTimingSummary
from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.record import Thread, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE, STEP_DTYPE, SpanFlag
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite, blocked_ns, totals_of
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.stream import Stream

FIRST_LINE = 10
"""The line of site 0 in its program."""
_BUDGET = 0.001
_MEDIAN_OF = 31
_SHARED_NS = 350
_MAX_OUTSIDE = 2048
_STARTED_NS = 5_000_000
"""How long the recording has been on when the program begins."""


class Recorder:
    """The recorder of one rank.

    Phases are timed on the device in every k-th step. With the default budget k is such that the
    events of a timed step cost the host at most a thousandth of k steps, by medians of the last
    steps. Two boundaries that nothing fits between share an event.

    Args:
        timed_steps: which steps to time, as another run of the program did, of which this one is
            not kept; None to decide, and to keep all.
    """

    def __init__(
        self, program: Program, stream: Stream, timed_steps: Sequence[bool] | None = None
    ) -> None:
        self._program = program
        self._options = program.recorder
        self._stream = stream
        self._times_device = self._options.times_device and program.has_device
        self._planned = timed_steps
        self.timed_steps: list[bool] = []
        self._paths: dict[tuple[int, str], int] = {}
        self._frames: list[tuple[int, int, int]] = []
        self._spans: list[tuple[int, ...]] = []
        self._self_ns: list[int] = []
        self._children_ns: list[int] = []
        self._steps: list[tuple[int, int]] = []
        self._waits_ns: list[int] = []
        self._syncs: list[tuple[int, ...]] = []
        self._step = -1
        self._step_begin_ns = 0
        self._is_timed = False
        self._untimed = 0
        self._every = self._options.every or 1
        self._durations_ns: list[int] = []
        self._costs_ns: list[int] = []
        self._cost_ns = 0
        self._records = 0
        self._event_ns = -1
        self._event_return_ns = -(10**12)
        self._outside = _MAX_OUTSIDE
        self.allocation_retries = 0

    # --- what the host tells it ---

    def begin_step(self, now_ns: int) -> None:
        self._step = len(self._steps)
        self._step_begin_ns = now_ns
        self._cost_ns = 0
        self._untimed += 1
        if self._planned is not None:
            self._is_timed = self._planned[self._step]
        else:
            self._is_timed = self._times_device and self._untimed >= self._every
        if self._is_timed:
            self._untimed = 0
        self.timed_steps.append(self._is_timed)

    def end_step(self, now_ns: int, waited_ns: int) -> None:
        """
        Args:
            waited_ns: for how long its thread waited for a processor.
        """
        self._waits_ns.append(waited_ns)
        self._steps.append((self._step_begin_ns, now_ns))
        self._durations_ns.append(now_ns - self._step_begin_ns)
        if self._is_timed:
            self._costs_ns.append(self._cost_ns)
        if self._options.every is None and self._costs_ns and self._planned is None:
            allowed_ns = _BUDGET * statistics.median_high(self._durations_ns[-_MEDIAN_OF:])
            cost_ns = statistics.median_high(self._costs_ns[-_MEDIAN_OF:])
            self._every = max(1, math.ceil(cost_ns / max(allowed_ns, 1)))
        self._step = -1

    def enter(self, name: str, now_ns: int) -> int:
        """A phase begins. Returns when the host goes on."""
        if self._planned is not None:
            now_ns, stamp_ns = self._boundary(now_ns + self._options.phase_ns)
            self._frames.append((-1, -1, stamp_ns))
            return now_ns
        parent = self._frames[-1][0] if self._frames else -1
        path = self._paths.setdefault((parent, name), len(self._paths))
        begin_ns = now_ns + self._options.phase_ns
        now_ns, stamp_ns = self._boundary(begin_ns)
        self._frames.append((path, begin_ns, stamp_ns))
        self._children_ns.append(0)
        return now_ns

    def leave(self, now_ns: int) -> int:
        """The innermost phase ends. Returns when the host goes on."""
        path, begin_ns, begin_stamp_ns = self._frames.pop()
        end_ns = now_ns + self._options.phase_ns
        now_ns, stamp_ns = self._boundary(end_ns) if begin_stamp_ns >= 0 else (end_ns, -1)
        if self._planned is not None:
            return now_ns
        children_ns = self._children_ns.pop()
        if self._children_ns:
            self._children_ns[-1] += end_ns - begin_ns
        depth = len(self._frames)
        # A step may end inside of a phase only in programs that this doesn't simulate.
        self._spans.append((path, self._step, depth, begin_ns, end_ns, begin_stamp_ns, stamp_ns))
        self._self_ns.append(end_ns - begin_ns - children_ns)
        return now_ns

    def sync(self, site: int, begin_ns: int, end_ns: int, size: int) -> None:
        if self._planned is None and self._options.watches and self._program.has_device:
            path = self._frames[-1][0] if self._frames else -1
            row = (begin_ns, end_ns - begin_ns, size, site, path, self._step, 0)
            self._syncs.append(row)

    def _boundary(self, now_ns: int) -> tuple[int, int]:
        """When the host goes on, and the true time of the event, or -1."""
        if self._step < 0:
            if not self._times_device or self._outside <= 0:
                return now_ns, -1
            self._outside -= 1
        elif not self._is_timed:
            return now_ns, -1
        if now_ns - self._event_return_ns < _SHARED_NS:
            return now_ns, self._event_ns
        called_ns = now_ns
        now_ns = self._stream.room_ns(now_ns + self._options.record_ns)
        self._event_ns = self._stream.put(now_ns, self._options.event_ns)
        self._event_return_ns = now_ns
        self._cost_ns += now_ns - called_ns
        self._records += 1
        return now_ns, self._event_ns

    # --- what it makes of that ---

    def run(self, end_ns: int) -> Run:
        """The run of a program that was done at this time."""
        options, program = self._options, self._program
        rng = np.random.default_rng([program.seed, 10**6])
        names = list(dict.fromkeys(name for _, name in self._paths))
        path_names = np.array([names.index(name) for _, name in self._paths], np.uint32)
        rows = np.array(self._spans, np.int64).reshape(-1, 7)
        spans = np.zeros(len(rows), SPAN_DTYPE)
        path, step, depth, begin_ns, span_end_ns, begin_stamp_ns, end_stamp_ns = rows.T
        spans["path"], spans["step"], spans["depth"] = path, step, depth
        spans["phase"] = path_names[path] if len(rows) else 0
        spans["host_begin_ns"] = begin_ns + _STARTED_NS
        spans["host_end_ns"] = span_end_ns + _STARTED_NS
        timed = (begin_stamp_ns >= 0) & (end_stamp_ns >= 0)
        spans["flags"] = SpanFlag.DEVICE * timed | SpanFlag.STEP_THREAD * (step >= 0)
        if options.lost_share:
            timed &= rng.random(len(rows)) >= options.lost_share
        spans["device"] = spans["stream"] = np.where(timed, 0, -1)
        zero_ns = int(rng.integers(10**9, 10**12))
        clock = self._clock(rng, zero_ns, end_ns)
        begins_ns, ends_ns = (
            self._read(stamps_ns + _STARTED_NS, zero_ns)
            for stamps_ns in (begin_stamp_ns, end_stamp_ns)
        )
        spans["device_begin_ns"] = np.where(timed, clock.on_run_axis(begins_ns), -1)
        spans["device_end_ns"] = np.where(timed, clock.on_run_axis(ends_ns), -1)
        duration_ns = end_ns + 2 * _STARTED_NS
        syncs = self._syncs_of(duration_ns)
        spans["blocked_ns"] = blocked_ns(spans, syncs)
        records_ns = self._records * options.record_ns
        last_every = self._every if options.every is None else options.every
        return Run(
            names=names,
            path_parents=[parent for parent, _ in self._paths],
            path_names=path_names,
            threads=[Thread(11, "MainThread")],
            streams=named_streams([(0, 0)]),
            environment=self._environment(),
            spans=spans,
            span_self_ns=np.array(self._self_ns, np.int64),
            span_device_ns=np.where(timed, ends_ns - begins_ns, -1),
            span_device_clock_ns=np.where(timed, begins_ns, -1),
            device_clocks=[clock] if timed.any() else [],
            device_timing=DeviceTimingSummary(last_every, self._records, records_ns)
            if self._times_device
            else None,
            steps=self._steps_of(),
            duration_ns=duration_ns,
            syncs=syncs,
            metric_names=[READING],
            metrics=self._waits(),
            memory=Memory(device=0, allocation_retries=self.allocation_retries),
        )

    def _read(self, true_ns: np.ndarray, zero_ns: int) -> np.ndarray:
        """What the device's clock says at such times of the run."""
        resolution_ns = self._options.resolution_ns
        ticks = np.rint(true_ns * (1 + self._options.drift) / resolution_ns).astype(np.int64)
        return zero_ns + ticks * resolution_ns

    def _clock(self, rng: np.random.Generator, zero_ns: int, end_ns: int) -> DeviceClock:
        options = self._options
        compared_ns = np.arange(0, end_ns, options.compared_every_ns)
        true_ns = np.unique(np.append(compared_ns, end_ns + 2 * _STARTED_NS - 1)).astype(np.int64)
        true_ns = np.maximum(true_ns, 1_000_000)
        error_ns = rng.uniform(-1, 1, len(true_ns)) * options.uncertainty_ns
        return DeviceClock(
            0,
            np.rint(zero_ns + true_ns * (1 + options.drift)).astype(np.int64),
            true_ns + np.rint(error_ns).astype(np.int64),
            np.full(len(true_ns), options.uncertainty_ns + options.resolution_ns, np.int64),
        )

    def _environment(self) -> dict[str, object]:
        program = self._program
        environment: dict[str, object] = {"host": "simulated", "torch": "2.9.0", "cuda": "12.8"}
        environment["gpus"] = ["simulated"] if program.has_device else []
        if program.ranks > 1:
            environment |= {"rank": 0, "world_size": program.ranks}
        if self._options.knows_program:
            facts = {"other_streams": program.has_other_streams, "ranks": program.ranks}
            loader = program.loader
            if loader is not None and program.takes_batches:
                facts |= dict(
                    loader_workers=loader.workers,
                    loader_pins=SyncKind.H2D_PAGEABLE not in program.sites.values(),
                    loader_prefetch=loader.prefetch_factor if loader.workers else 0,
                    loader_persistent=loader.workers > 0,
                )
            environment[KEY] = facts
        return environment

    def _steps_of(self) -> Steps:
        steps = np.zeros(len(self._steps), STEP_DTYPE)
        for index, (row, (begin_ns, end_ns)) in enumerate(zip(steps, self._steps, strict=True)):
            row["index"], row["begin_ns"] = index, begin_ns + _STARTED_NS
            row["end_ns"] = end_ns + _STARTED_NS
        steps["samples"], steps["items"], steps["complete"] = math.nan, 1, True
        return Steps(steps)

    def _waits(self) -> np.ndarray:
        waits = np.zeros(len(self._steps), METRIC_DTYPE)
        waits["update"] = waits["step"] = np.arange(len(self._steps))
        waits["value"] = self._waits_ns
        return waits

    def _syncs_of(self, duration_ns: int) -> Syncs:
        if not self._options.watches:
            return Syncs()
        events = np.array([tuple(row) for row in self._syncs], SYNC_DTYPE)
        events["begin_ns"] += _STARTED_NS
        kinds = self._program.sites
        totals = totals_of(events, 1 + max(kinds, default=-1))
        # Sites are numbered by the program; one that was never reached has no wait.
        sites = tuple(
            SyncSite("train.py", FIRST_LINE + site, "train", kinds[site], False, total)
            for site, total in enumerate(totals)
        )
        return Syncs(sites=sites, events=events, watched_ns=((0, duration_ns),))
