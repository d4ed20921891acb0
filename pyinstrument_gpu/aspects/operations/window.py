# SPDX-License-Identifier: Apache-2.0
"""A window of steps under torch's profiler, and what becomes of it in the run.

It begins and ends between two steps, on the thread that begins the next one, and what was seen is
summed up there at once: training stands still meanwhile, and no step but the profiled ones is any
slower. A window ends early with its recording, when the program starts a profiler of its own, or
after `LONGEST_S`; whoever comes first ends it, on any thread, and the others find nothing to do.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import to_builtins
from msgspec.structs import replace

from pyinstrument_gpu.aspects.operations.attribution import attribute, device_use, wall_to_run
from pyinstrument_gpu.aspects.operations.data import Operations
from pyinstrument_gpu.aspects.operations.events import events_of
from pyinstrument_gpu.aspects.operations.flops.counting import FlopCounting
from pyinstrument_gpu.aspects.operations.phase_timeline import WindowLog, read_window
from pyinstrument_gpu.aspects.operations.torch_profiler import ProfilerInUse, TorchProfiler
from pyinstrument_gpu.core.file.live_log import LogSubscription
from pyinstrument_gpu.core.flops import Flops
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.own_imports import OwnImports

if TYPE_CHECKING:
    from pyinstrument_gpu.core.watcher import ActiveRecording

LONGEST_S = 60.0
"""The profiler keeps every event in memory, so a window lasts no longer than this."""
_CLOCK_WAS_SET_NS = 1_000_000
_MOST_NOTES = 20


class OperationsDocument:
    """The results of one recording's windows, as its run file has them."""

    def __init__(self, recording: ActiveRecording) -> None:
        self._recording = recording
        self.content = Operations()

    def set(self, content: Operations) -> None:
        self.content = replace(content, notes=content.notes[:_MOST_NOTES])
        data = json.dumps(to_builtins(self.content)).encode()
        native.set_document(self._recording, "operations", data)

    def note(self, sentence: str) -> None:
        """Say what went wrong."""
        self.set(replace(self.content, notes=(*self.content.notes, sentence)))


@dataclass
class _Measuring:
    """The things that are on during a window, and what takes them back, the last first."""

    profiler: TorchProfiler
    subscription: LogSubscription
    before: bytes
    clocks: tuple[int, int]
    wall_less_monotonic_ns: int
    timer: threading.Timer
    undo: list[Callable[[], None]]
    stopped_ns: int = 0


@dataclass
class ProfileWindow:
    """A window of profiled steps; `begin` is called between two steps, and raises no Exception.

    Attributes:
        steps: how many to profile.
        trace: where to keep the profiler's trace, or None.
        with_stack, record_shapes: what it is to hold.
        flops: whether to count floating-point operations.
    """

    recording: ActiveRecording
    document: OperationsDocument
    steps: int
    trace: Path | None
    with_stack: bool
    record_shapes: bool
    flops: bool
    has_begun: bool = False
    is_over: bool = False
    # Whoever takes it from here ends the window.
    _measuring: list[_Measuring] = field(default_factory=list)
    _first: int = 0  # index of its first step
    _pid: int = field(default_factory=os.getpid)

    def begin(self) -> None:
        if self.is_over or os.getpid() != self._pid or native.owner() is not self.recording:
            return
        self.has_begun = True
        began_ns = time.perf_counter_ns()
        undo: list[Callable[[], None]] = []
        try:
            self._measure(undo)
        except BaseException as error:
            self._measuring.clear()
            self.is_over = True
            _take_back(undo)
            if not isinstance(error, Exception):
                raise
            why = str(error) if isinstance(error, ProfilerInUse) else repr(error)
            self.document.note(f"no steps were profiled: {why}")
            return
        # The step that begins now is the first. Also if the process is killed, the file has this.
        self._first = native.set_profiled(True)
        self._say_which(self._first + self.steps)
        native.call_before_step(self.end, after=self.steps - 1)
        self._measuring[0].stopped_ns = time.perf_counter_ns() - began_ns

    def _measure(self, undo: list[Callable[[], None]]) -> None:
        if "torch" not in sys.modules:
            raise ProfilerInUse("the program has not imported torch")
        native.harvest()  # what comes from now on belongs to the window
        subscription = LogSubscription(self.recording)
        undo.append(subscription.close)
        native.harvest()
        before = subscription.take()
        profiler = TorchProfiler(
            with_stack=self.with_stack,
            record_shapes=self.record_shapes or self.flops,
            gives_way=lambda: self.end_early("the program started a profiler of its own"),
        )
        undo.append(profiler.stop)
        timer = threading.Timer(
            LONGEST_S, self.end_early, [f"it had lasted for {LONGEST_S:g} seconds"]
        )
        timer.daemon = True
        self._measuring.append(
            _Measuring(
                profiler,
                subscription,
                before,
                native.read_clocks(),
                time.time_ns() - time.monotonic_ns(),
                timer,
                undo,
            )
        )
        timer.start()

    def end_early(self, reason: str) -> None:
        """End it in the middle of its steps."""
        self.end(f"the profiled steps ended early: {reason}")

    def end(self, note: str | None = None) -> None:
        """End the window and put what was seen into the run. Calling it again does nothing."""
        self.is_over = True
        if os.getpid() != self._pid:
            return
        try:
            measuring = self._measuring.pop()
        except IndexError:
            return
        notes: list[str] = []
        try:
            end = native.set_profiled(False)
            self._say_which(end)
            # One that is open will be longer than what was seen of it.
            whole = max(0, end - self._first - (native.open_place()[1] >= self._first))
            if note is not None and whole < self.steps:
                notes.append(note)
            ended_ns = time.perf_counter_ns()
            measuring.timer.cancel()
            measuring.profiler.stop()
            clocks = native.read_clocks()
            native.harvest()
            log = read_window(measuring.before, measuring.subscription.take(), self._first)
            content = self._what_was_seen(measuring, log, clocks, whole, notes)
            if self.trace is not None:
                try:
                    marks = functools.partial(_marks_of_steps, log, measuring.clocks, clocks)
                    measuring.profiler.save(self.trace, marks)
                    content = replace(content, trace=str(self.trace))
                except Exception as error:
                    notes.append(f"the trace was not kept: {error!r}")
            stopped_ns = measuring.stopped_ns + time.perf_counter_ns() - ended_ns
            content = replace(content, stopped_ns=stopped_ns)
        except Exception as error:
            notes.append(f"what was profiled was lost: {error!r}")
            content = self.document.content
        finally:
            # Also where a Ctrl-C has come just now.
            _take_back(measuring.undo)
        self.document.set(replace(content, notes=(*self.document.content.notes, *notes)))

    def _say_which(self, end: int) -> None:
        """Note that the steps from the first one on were profiled, up to `end`."""
        content = self.document.content
        others = tuple(each for each in content.profiled if each[0] < self._first)
        window = ((self._first, end - 1),) if end > self._first else ()
        self.document.set(replace(content, profiled=others + window))

    def _what_was_seen(
        self,
        measuring: _Measuring,
        log: WindowLog,
        clocks: tuple[int, int],
        whole: int,
        notes: list[str],
    ) -> Operations:
        """Return the sums over what began in the profiled steps, of which so many are whole."""
        run_ns_of = wall_to_run(measuring.clocks, clocks)
        counting, flops_of = None, None
        if self.flops:
            with OwnImports():  # here, as they need torch
                from pyinstrument_gpu.aspects.operations.flops import formulas, peaks

            counting, flops_of = FlopCounting(), formulas.flops_of
        events = events_of(measuring.profiler.events(), flops_of)
        shift_ns = time.time_ns() - time.monotonic_ns() - measuring.wall_less_monotonic_ns
        if abs(shift_ns) > _CLOCK_WAS_SET_NS:
            notes.append(
                "the machine's clock was set while steps were profiled: phases of operations may "
                "be wrong"
            )
        if log.missed_spans:
            notes.append(
                f"{log.missed_spans:,} spans of the profiled steps came too fast: operations in "
                "them are counted in the phase around, or in none"
            )
        if not events.host:
            notes.append("torch's profiler has seen no operation")
        if measuring.profiler.uses_device and not events.device:
            notes.append(
                "torch's profiler has seen no work of the GPU: another tool may hold CUPTI"
            )
        # What lies between the steps and behind the last one is no part of them.
        events = events.begun(lambda wall_ns: log.is_in_step(run_ns_of(wall_ns)))
        operations = attribute(events, log.phases, run_ns_of, max(1, whole), counting)
        flops = None
        if counting is not None:
            device = peaks.device_name()
            without_formula = counting.unknown(events.device)
            flops = Flops(counting.counts(), without_formula, device, peaks.peaks_of(device))
        return Operations(
            profiled=self.document.content.profiled,
            first_step=self._first if whole else None,
            last_step=self._first + whole - 1 if whole else None,
            steps=whole,
            operations=operations,
            device=device_use(events.device),
            flops=flops,
        )


def _marks_of_steps(
    log: WindowLog, before: tuple[int, int], after: tuple[int, int], base_ns: int
) -> list[str]:
    """Return events of a trace for the steps, named as torch's own scheduler names them, by which
    other tools know iterations.

    Args:
        before, after: readings of the run's clock and of the wall clock.
        base_ns: the time of the wall clock from which the trace counts.
    """
    wall_ns = wall_to_run((before[1] - base_ns, before[0]), (after[1] - base_ns, after[0]))
    events = []
    for (index, thread), (begin_ns, end_ns) in zip(log.ended, log.steps, strict=False):
        begin_us = wall_ns(int(begin_ns)) / 1_000
        event = {
            "ph": "X",
            "cat": "user_annotation",
            "name": f"ProfilerStep#{index}",
            "pid": os.getpid(),
            "tid": thread,
            "ts": round(begin_us, 3),
            "dur": round(wall_ns(int(end_ns)) / 1_000 - begin_us, 3),
            "args": {},
        }
        events.append(json.dumps(event))
    return events


def _take_back(undo: list[Callable[[], None]]) -> None:
    for function in reversed(undo):
        with contextlib.suppress(Exception):
            function()
