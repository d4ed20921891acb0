# SPDX-License-Identifier: Apache-2.0
"""The phase of each operation of a window, and its cost there.

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
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec.structs import replace

from pyinstrument_gpu.aspects.operations.data import DeviceUse, Operation, sums
from pyinstrument_gpu.aspects.operations.events import DeviceEvent, Events, HostEvent
from pyinstrument_gpu.aspects.operations.flops.counting import FlopCounting
from pyinstrument_gpu.aspects.operations.phase_timeline import PhaseTimeline

MOST_OPERATIONS = 2_000
"""More rows than this, of an operation and phase each, become one per phase."""

_Key: TypeAlias = tuple[str | None, str | None]
"""The name of an operation, and the path of its phase."""


def wall_to_run(before: tuple[int, int], after: tuple[int, int]) -> Callable[[int], float]:
    """Return a conversion from times of the wall clock to the run's, given two readings of both,
    the run's first."""
    run_ns, wall_ns = before
    elapsed_ns = after[1] - wall_ns
    rate = (after[0] - run_ns) / elapsed_ns if elapsed_ns > 0 else 1.0
    return lambda time_ns: run_ns + (time_ns - wall_ns) * rate


def attribute(
    events: Events,
    phases: PhaseTimeline,
    run_ns_of: Callable[[int], float],
    steps: int = 1,
    flops: FlopCounting | None = None,
) -> tuple[Operation, ...]:
    """Sum the operations of a window by name and phase.

    Args:
        run_ns_of: how the profiler's times read by the run's clock (`wall_to_run`).
        steps: by which the sums are divided.
        flops: is given the events, each with its phase.
    """
    keys: dict[int, _Key] = {}  # of operations, by their correlation
    calls: Counter[_Key] = Counter()
    host_ns: Counter[_Key] = Counter()
    native_threads = {event.thread: event.native_thread for event in events.host}
    by_thread: dict[int, list[HostEvent]] = defaultdict(list)
    for event in events.host:
        by_thread[event.thread].append(event)
    for thread in by_thread.values():
        thread_of_phases = _thread_of_phases(thread, native_threads)
        for event, self_ns, parents, is_repeated in _with_self_times(thread):
            path = phases.path_at(thread_of_phases, run_ns_of(event.begin_ns))
            keys[event.correlation] = key = event.name, path
            if flops is not None:
                flops.add(event, self_ns, parents, path)
            if not event.is_annotation:
                calls[key] += not is_repeated
                host_ns[key] += self_ns
    nowhere = None, None
    launches = Counter(keys.get(operator, nowhere) for operator in events.launches)
    device_ns: Counter[_Key] = Counter()
    for work in events.device:
        device_ns[keys.get(work.operator, nowhere)] += work.end_ns - work.begin_ns
    has_device = bool(events.device)
    longest = sums(
        Operation(
            *key,
            calls=calls[key] / steps,
            host_ns=host_ns[key] / steps,
            device_ns=device_ns[key] / steps if has_device else None,
            launches=launches[key] / steps if has_device else None,
        )
        # In the order in which they came first.
        for key in {**calls, **launches, **device_ns}
    )
    rest = (replace(one, name=None) for one in longest[MOST_OPERATIONS:])
    return sums((*longest[:MOST_OPERATIONS], *rest))


def device_use(work: Iterable[DeviceEvent]) -> DeviceUse | None:
    """Return how busy devices were, on whatever stream; None where nothing of them was seen."""
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
    return DeviceUse(len(by_device), busy_ns, elapsed_ns) if by_device else None


def _thread_of_phases(thread: list[HostEvent], native_threads: Mapping[int, int]) -> int:
    """The system's number of the thread in whose phases the events of a thread are: its own, or of
    a thread of autograd, which runs nodes of another, that one."""
    own = thread[0].thread
    callers = Counter(e.forward_thread for e in thread if e.forward_thread not in (0, own))
    of_phases = callers.most_common(1)[0][0] if callers else own
    return native_threads.get(of_phases, -1)


def _with_self_times(
    thread: list[HostEvent],
) -> Iterator[tuple[HostEvent, int, tuple[HostEvent, ...], bool]]:
    """The events of one thread in order of their begin, each with its self time, the events around
    it from the outermost in, and whether it is one call with the innermost of these, as that has
    the same name and nothing else inside."""
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
    for event, own_ns, outer in zip(ordered, self_ns, parents, strict=True):
        is_repeated = (
            bool(outer) and ordered[outer[-1]].name == event.name and children[outer[-1]] == 1
        )
        yield event, own_ns, tuple(ordered[one] for one in outer), is_repeated
