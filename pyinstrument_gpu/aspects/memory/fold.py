# SPDX-License-Identifier: Apache-2.0
"""Sums of the readings of memory, of bounded size: what the MEMORY document holds.

A peak is a counter of the allocator that only rises while nobody resets it. If it rose between two
readings, so much was in use there, to the byte, and the phases that were open had that as their
peak. If it did not rise during a phase, its peak lies between the most that was found in use at a
boundary within, and where the counter stands. If the counter was found to have fallen within a
phase, the program has reset it there, and may do so in other calls where that can't be seen: then
no peak of this phase is called its own.

If exact peaks are asked for, the counter is reset at each boundary. Then it has always risen, or it
stands at what was allocated when it was reset, so the same arithmetic finds each peak exactly. The
peak of a phase is the largest of those between its boundaries and those of phases within.

What a phase leaves behind is what was in use at its end less what was at its begin. Per step these
values are many and noisy, so the newest are kept, and their median is written with an interval for
it, which is that of the sign test: from the k-th smallest to the k-th largest value, with k such
that a binomial distribution leaves 5 % outside (W. J. Conover, Practical Nonparametric Statistics,
"confidence interval for a quantile").
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import Any

from pyinstrument_gpu.core.bounded_series import BoundedSeries

STEP_BEGIN, PHASE_BEGIN, PHASE_END, STEP_END, RESET = range(5)
"""Kinds of readings, as csrc/python/memory_watch.h numbers them."""

MOST_BOUNDARIES = 1024
"""In one step: of a step with more, the rest is not read."""
MOST_PHASES = 1000
MOST_POINTS = 256
MOST_STEPS = 64
_OUTSIDE = 0.05
_MOST_SAVED_PHASES = 32

Reading = tuple[int, ...]
"""As `native.take_memory_readings` returns them."""
Bounds = tuple[int, int, int]
"""The median and the interval of it."""


def median_with_interval(values: Iterable[int]) -> Bounds | None:
    """The lower median, and what it is within; None where there are too few for an interval."""
    ordered = sorted(values)
    count = len(ordered)
    outside, rank = 0.0, 0
    while rank < count // 2:
        outside += 2 * math.comb(count, rank) / 2**count
        if outside > _OUTSIDE:
            break
        rank += 1
    if rank == 0:
        return None
    return ordered[(count - 1) // 2], ordered[rank - 1], ordered[count - rank]


class _Open:
    """A phase, or the step, that has begun."""

    def __init__(self, depth: int, allocated: int) -> None:
        self.depth = depth
        self.begin = allocated
        self.most = allocated  # that is known for certain
        self.limit = 0.0  # and what its peak can't have exceeded
        self.inner = 0  # what phases within have left behind


class _Phase:
    def __init__(self) -> None:
        self.calls = 0
        self.steps = 0
        self.begin_sum = self.end_sum = 0
        self.peak = 0  # the most that is known for certain
        self.peak_limit = 0.0  # and what no call can have exceeded
        self.left: deque[int] = deque(maxlen=MOST_STEPS)
        self.own_left: deque[int] = deque(maxlen=MOST_STEPS)

    def add(self, begun: _Open, allocated: int) -> None:
        self.calls += 1
        self.begin_sum += begun.begin
        self.end_sum += allocated
        self.peak = max(self.peak, begun.most)
        self.peak_limit = max(self.peak_limit, begun.limit)

    def facts(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "steps": self.steps,
            "begin_bytes": round(self.begin_sum / self.calls),
            "end_bytes": round(self.end_sum / self.calls),
            "peak_bytes": self.peak,
            "peak_is_exact": self.peak >= self.peak_limit,
            "left_bytes": median_with_interval(self.left),
            "own_left_bytes": median_with_interval(self.own_left),
        }


class MemoryFold:
    """The data kept from the readings of one source.

    Args:
        device: number of the device, or None for the memory of the process.

    Attributes:
        peak_bytes: the most that was in use; -1 where that is not known.
    """

    def __init__(self, device: int | None) -> None:
        self.device = device
        self.steps = 0
        self.peak_bytes = self._reserved_peak = -1
        self._retries = (-1, -1)  # after the first step that was read, and after the last one
        self._retried = deque[int](maxlen=MOST_POINTS)
        self._phases: dict[int, _Phase] = {}
        self._paths_lost = 0
        self._outside = deque[int](maxlen=MOST_STEPS)
        self._points = BoundedSeries[tuple[int, int, int]](MOST_POINTS)

    def add(self, readings: Iterable[Reading]) -> None:
        """Add the readings of steps that have ended."""
        for step in steps_of(readings):
            self._add_step(step)

    def facts(self) -> dict[str, Any]:
        """Return the part of the document; nothing where no step was read."""
        if not self.steps:
            return {}
        first, last = self._retries
        return {
            "source": "process" if self.device is None else "device",
            "device": self.device,
            "steps": self.steps,
            "peak_bytes": _known(self.peak_bytes),
            "reserved_peak_bytes": _known(self._reserved_peak),
            "allocation_retries": last - first if 0 <= first <= last else None,
            "retried_steps": [*self._retried],
            "points": [
                [step, used, _known(reserved)] for step, used, reserved in self._points.kept
            ],
            "phases": [{"path": path, **each.facts()} for path, each in self._phases.items()],
            "phases_lost": self._paths_lost,
            "outside_left_bytes": median_with_interval(self._outside),
        }

    def _add_step(self, readings: list[Reading]) -> None:
        _, serial, _, _, allocated, _, _, _, counter, *_ = readings[0]
        stack = [_Open(-1, allocated)]
        left: dict[int, int] = {}
        own_left: dict[int, int] = {}
        for kind, _, path, depth, allocated, peak, _, _, next_counter, *_ in readings[1:]:
            # After a reset, too, the counter has been where it stands.
            seen = allocated if peak == counter else max(allocated, peak)
            limit = math.inf if peak < counter else peak
            counter = next_counter
            stack[-1].most = max(stack[-1].most, seen)
            stack[-1].limit = max(stack[-1].limit, limit)
            if kind == RESET:
                continue
            if kind == PHASE_BEGIN:
                stack.append(_Open(depth, allocated))
                continue
            # One that was cancelled has no end, and goes with the one around it.
            outer = depth if kind == PHASE_END else -1
            while len(stack) > 1 and stack[-1].depth > outer:
                _close(stack)
            begun = stack[-1]
            if begun.depth != depth or kind != PHASE_END:
                continue
            phase = self._phase(path)
            if phase is not None:
                phase.add(begun, allocated)
                change = allocated - begun.begin
                left[path] = left.get(path, 0) + change
                own_left[path] = own_left.get(path, 0) + change - begun.inner
            _close(stack, allocated)
        self.peak_bytes = max(self.peak_bytes, *(reading[5] for reading in readings))
        self._reserved_peak = max(self._reserved_peak, *(reading[7] for reading in readings))
        _, _, _, _, allocated, _, reserved, _, _, retries, _ = readings[-1]
        self._retries = self._retries[0] if self.steps else retries, retries
        if 0 <= readings[0][9] < retries:
            self._retried.append(serial)
        is_whole = len(readings) <= MOST_BOUNDARIES
        if is_whole:
            self._outside.append(allocated - stack[0].begin - stack[0].inner)
        for path, phase in self._phases.items():
            phase.steps += path in left
            if is_whole:
                # In a step without it, a phase leaves nothing.
                phase.left.append(left.get(path, 0))
                phase.own_left.append(own_left.get(path, 0))
        self._points.add((serial, allocated, reserved))
        self.steps += 1

    def _phase(self, path: int) -> _Phase | None:
        phase = self._phases.get(path)
        if phase is None:
            if len(self._phases) == MOST_PHASES:
                self._paths_lost += 1
                return None
            phase = self._phases[path] = _Phase()
        return phase


def steps_of(readings: Iterable[Reading]) -> Iterator[list[Reading]]:
    """The readings of each step, from its begin to its end."""
    step: list[Reading] = []
    for reading in readings:
        if reading[0] == STEP_BEGIN:
            step = []
        step.append(reading)
        if reading[0] == STEP_END and step[0][0] == STEP_BEGIN:
            yield step
            step = []


def saved_by_phase(
    step: list[Reading], saved: Iterable[tuple[int, int]]
) -> list[tuple[int | None, int]]:
    """Return which phases made the nodes that saved so much: the innermost ones, by path."""
    numbers, owners = [], []
    open_phases: list[list[int]] = []
    for kind, _, path, depth, *_, next_node in step:
        if kind in (PHASE_BEGIN, PHASE_END):
            begun, open_phases = open_phases[depth : depth + 1], open_phases[:depth]
            if kind == PHASE_BEGIN:
                open_phases.append([path])
            elif begun:
                begun[0][0] = path  # it may end under another one than it began with
        numbers.append(next_node)
        owners.append(open_phases[-1] if open_phases else [-1])
    sums: Counter[int] = Counter()
    for number, size_bytes in saved:
        place = bisect.bisect_right(numbers, number) - 1
        sums[-1 if place < 0 else owners[place][0]] += size_bytes
    return [
        (None if path < 0 else path, held) for path, held in sums.most_common(_MOST_SAVED_PHASES)
    ]


def _close(stack: list[_Open], allocated: int | None = None) -> None:
    """Take the innermost one off; without its end it counts as a part of the one around it."""
    begun = stack.pop()
    around = stack[-1]
    around.most = max(around.most, begun.most)
    around.limit = max(around.limit, begun.limit)
    around.inner += begun.inner if allocated is None else allocated - begun.begin


def _known(value: int) -> int | None:
    return None if value < 0 else value
