# SPDX-License-Identifier: Apache-2.0
"""Which phase each operation of a window belongs to, and what it cost there.

An operation belongs to the innermost phase that its thread was in when it began. The profiler's
times and those of phases are readings of different clocks, which are related by pairs of readings
from before and after the window. Threads of autograd are in no phase: what they run belongs to the
phase of the thread that made the nodes, at that time.

Self times and calls are those of torch.profiler's own tables: the time of an event without that of
the events directly inside it, on one thread; an operation that does nothing but call another of its
name is one call with it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from msgspec.structs import replace

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, Operations, sums
from pyinstrument_gpu.aspects.operations.events import DeviceEvent, Events, HostEvent
from pyinstrument_gpu.aspects.operations.flops.counting import FlopCounting
from pyinstrument_gpu.aspects.operations.phase_timeline import PhaseTimeline

MOST_OPERATIONS = 2_000
"""More rows than this, of an operation and phase each, become one per phase."""


class _Place(NamedTuple):
    """Where an operation belongs."""

    name: str | None
    path: str | None


def wall_to_run(before: tuple[int, int], after: tuple[int, int]) -> Callable[[int], float]:
    """How a time of the wall clock reads by the run's, given two readings of both, the run's
    first."""
    run_ns, wall_ns = before
    elapsed_ns = after[1] - wall_ns
    rate = (after[0] - run_ns) / elapsed_ns if elapsed_ns > 0 else 1.0
    return lambda time_ns: run_ns + (time_ns - wall_ns) * rate


def attribute(
    events: Events,
    phases: PhaseTimeline,
    run_ns_of: Callable[[int], float],
    flops: FlopCounting | None = None,
) -> Operations:
    """Sum the operations of a window by name and phase.

    Args:
        run_ns_of: how the profiler's times read by the run's clock (`wall_to_run`).
        flops: is given the events, each with its phase.
    """
    places: dict[int, _Place] = {}  # of operations, by their correlation
    calls: Counter[_Place] = Counter()
    host_ns: Counter[_Place] = Counter()
    annotations_ns = 0
    native_threads = {event.thread: event.native_thread for event in events.host}
    by_thread: dict[int, list[HostEvent]] = defaultdict(list)
    for event in events.host:
        by_thread[event.thread].append(event)
    for thread in by_thread.values():
        locate = _Locator(thread, phases, native_threads, run_ns_of).place_of
        for event, self_ns, parents, is_repeated in _with_self_times(thread):
            place = locate(event)
            places[event.correlation] = place
            if flops is not None:
                flops.add(event, self_ns, parents, place.path)
            if event.is_annotation:
                annotations_ns += self_ns
            else:
                calls[place] += not is_repeated
                host_ns[place] += self_ns
    nowhere = _Place(None, None)
    device_ns: Counter[_Place] = Counter()
    launches = Counter(places.get(operator, nowhere) for operator in events.launches)
    for work in events.device:
        device_ns[places.get(work.operator, nowhere)] += work.end_ns - work.begin_ns
    has_device = bool(events.device)
    operations = [
        Operation(
            *place,
            calls=calls[place],
            host_ns=host_ns[place],
            device_ns=device_ns[place] if has_device else None,
            launches=launches[place] if has_device else None,
        )
        # In the order in which they came first.
        for place in {**calls, **launches, **device_ns}
    ]
    return Operations(
        operations=_bounded(operations),
        annotations_ns=annotations_ns,
        device=_device_use(events.device) if has_device else None,
    )


def _device_use(work: Iterable[DeviceEvent]) -> DeviceUse:
    """How busy devices were, on whatever stream."""
    by_device: dict[int, list[DeviceEvent]] = defaultdict(list)
    for one in work:
        by_device[one.device].append(one)
    busy_ns = elapsed_ns = 0
    for of_device in by_device.values():
        of_device.sort()
        begin_ns = done_ns = of_device[0].begin_ns
        for one in of_device:
            busy_ns += max(0, one.end_ns - max(one.begin_ns, done_ns))
            done_ns = max(done_ns, one.end_ns)
        elapsed_ns += done_ns - begin_ns
    return DeviceUse(len(by_device), busy_ns, elapsed_ns)


class _Timed(NamedTuple):
    """An event, its self time, and the events around it from the outermost in. `is_repeated`: the
    one around it has the same name and nothing else inside, so the two are one call."""

    event: HostEvent
    self_ns: int
    parents: tuple[HostEvent, ...]
    is_repeated: bool


def _with_self_times(thread: list[HostEvent]) -> list[_Timed]:
    """The events of one thread in order of their begin."""
    ordered = sorted(thread, key=lambda event: (event.begin_ns, -event.end_ns))
    self_ns = [event.end_ns - event.begin_ns for event in ordered]
    children = [0] * len(ordered)
    around: list[int] = []
    parents: list[tuple[int, ...]] = []
    for number, event in enumerate(ordered):
        # What overlaps another without lying inside it is none of its children.
        while around and (
            event.begin_ns >= ordered[around[-1]].end_ns
            or event.end_ns > ordered[around[-1]].end_ns
        ):
            around.pop()
        if around:
            self_ns[around[-1]] -= event.end_ns - event.begin_ns
            children[around[-1]] += 1
        parents.append(tuple(around))
        around.append(number)
    return [
        _Timed(
            event,
            own_ns,
            tuple(ordered[one] for one in outer),
            bool(outer) and ordered[outer[-1]].name == event.name and children[outer[-1]] == 1,
        )
        for event, own_ns, outer in zip(ordered, self_ns, parents, strict=True)
    ]


class _Locator:
    """Finds the places of one thread's events, which have to come in order of their begin."""

    def __init__(
        self,
        thread: list[HostEvent],
        phases: PhaseTimeline,
        native_threads: dict[int, int],
        run_ns_of: Callable[[int], float],
    ) -> None:
        own = thread[0].thread
        # One that runs nodes of another is a thread of autograd.
        callers = Counter(e.forward_thread for e in thread if e.forward_thread not in (0, own))
        of_phases = callers.most_common(1)[0][0] if callers else own
        self._thread_of_phases = native_threads.get(of_phases, -1)
        self._phases = phases
        self._run_ns_of = run_ns_of

    def place_of(self, event: HostEvent) -> _Place:
        path = self._phases.path_at(self._thread_of_phases, self._run_ns_of(event.begin_ns))
        return _Place(event.name, path)


def _bounded(operations: list[Operation]) -> tuple[Operation, ...]:
    """The longest first, and the shortest as one without a name for each phase, if there are more
    than may be."""
    longest = sums(operations)
    rest = (replace(one, name=None) for one in longest[MOST_OPERATIONS:])
    return sums((*longest[:MOST_OPERATIONS], *rest))
