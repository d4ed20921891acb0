# SPDX-License-Identifier: Apache-2.0
"""The section on phases: in steps, and elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.step_times import (
    in_unfinished_steps,
    mean_per_step_ns,
    outside_during_steps,
    outside_ns,
)
from pyinstrument_gpu.core.paths import in_tree_order
from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import PhaseStatistics, Scope, Statistic
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import Unit

_OVERLAP = 1.05
"""From where on own times that add up to more than the step are told."""


@dataclass(frozen=True)
class PhaseOnDevice:
    """The calls of a phase that were timed on the device.

    Attributes:
        calls: how many, where it is not all of the phase's calls.
        mean_ns, p50_ns, p95_ns: device time per call: from when the device reached the phase's
            begin to when it reached its end.
        queue_time_calls: of how many calls their queue time is known, where it is not all that were
            timed.
        queue_time_p50_ns, queue_time_p95_ns: how long after the host the device began a call.
        bottleneck: what limits the phase: "launch" (the device waited for the host to enqueue
            work), "device", "blocked" (the host waited in the phase), "mixed", "launch?" (launch or
            blocked, because waits were not measured), or "device?" (device, but less work on the
            host may save more). Where nothing does: "host", if the device began and ended with the
            host, so that all of its time may be waiting.
    """

    calls: int | None
    mean_ns: float
    p50_ns: int
    p95_ns: int
    queue_time_calls: int | None
    queue_time_p50_ns: int | None
    queue_time_p95_ns: int | None
    bottleneck: str | None


@dataclass(frozen=True)
class ClockFit:
    """The fit of a device's times to the host's.

    Attributes:
        uncertainty_ns: by how much they may be off.
        drift_ppm: how much faster the device's clock runs, in parts per million.
    """

    device: int
    uncertainty_ns: float
    drift_ppm: float | None


@dataclass(frozen=True)
class PhaseInSteps:
    """A phase on the steps' own thread. Times are means per step that ended, unless they say
    otherwise.

    Attributes:
        path: the phase and those around it, from the outermost in, joined by "/".
        calls: in the whole run.
        host_ns: between its begin and its end on the host.
        p50_ns, p95_ns: of what each step spent in it.
        self_ns: without the phases inside.
        device_ns: on the device; a mean of the calls that were timed stands for all.
        blocked_ns: the part of `host_ns` in which the host waited for the device.
        blocked_calls: in how many calls that is known, where it is not all.
        share: of the step; unknown where phases outlast their step.
    """

    path: str
    calls: int
    host_ns: float | None
    p50_ns: int | None
    p95_ns: int | None
    self_ns: float | None
    device_ns: float | None
    blocked_ns: float | None
    blocked_calls: int | None
    share: float | None
    device: PhaseOnDevice | None


@dataclass(frozen=True)
class PhaseCalls:
    """A phase elsewhere: outside steps, on other threads, or in a run without steps. Times are per
    call.

    Attributes:
        self_ns: without the phases inside.
        device_ns: on the device.
        blocked_ns: the part in which the host waited for the device.
        during_steps: true where it was open during steps, so that its times include theirs.
    """

    path: str
    calls: int
    total_ns: int
    mean_ns: float | None
    p50_ns: int | None
    p95_ns: int | None
    self_ns: float | None
    device_ns: float | None
    blocked_ns: float | None
    during_steps: bool | None
    device: PhaseOnDevice | None


def phases_in_steps(run: Run) -> tuple[PhaseInSteps, ...]:
    device = _device_times(run, Scope.STEP)
    about = analysis.of(run)
    quantiles, step_ns = about.step_quantiles, about.step_totals.duration.mean_ns
    unfinished = in_unfinished_steps(run, about.cut_short)
    found = []
    for path, phase in _in_scope(run, Scope.STEP):
        still = unfinished.get((path, Scope.STEP), PhaseStatistics())
        calls = phase.count - still.count
        host_ns, self_ns, device_ns, blocked_ns = (
            mean_per_step_ns(about.step_totals.count, *times, calls)
            for times in (
                (phase.host, still.host),
                (phase.self_host, still.self_host),
                (phase.device, still.device),
                (phase.blocked, still.blocked),
            )
        )
        p50_ns, p95_ns = quantiles.of_path(path) or (None, None)
        found.append(
            PhaseInSteps(
                path=run.paths[path],
                calls=phase.count,
                host_ns=host_ns,
                p50_ns=p50_ns,
                p95_ns=p95_ns,
                self_ns=self_ns,
                device_ns=device_ns,
                blocked_ns=blocked_ns,
                blocked_calls=_unless_all(phase.blocked, phase.count),
                share=host_ns / step_ns if host_ns is not None and host_ns <= step_ns > 0 else None,
                device=device(path, phase),
            )
        )
    return tuple(found)


def overlap(phases: Sequence[PhaseInSteps], step_ns: float) -> float | None:
    """Return how often the phases' own times contain the step, if noticeably more than once: tasks
    and generators that take turns are in phases at the same time. None otherwise."""
    own_ns = sum(phase.self_ns or 0.0 for phase in phases)
    return own_ns / step_ns if own_ns > _OVERLAP * step_ns > 0 else None


def phases_outside(run: Run) -> tuple[PhaseCalls, ...]:
    """Return the phases outside of steps, where steps ended."""
    if not run.step_totals.count:
        return ()
    phases = _in_scope(run, Scope.OUTSIDE)
    longest_ns = outside_ns(run)
    # Where the span itself is lost, it tells by its length: longer than all the time outside.
    during = {path for path, p in phases if p.host and p.host.max_ns > longest_ns}
    during |= outside_during_steps(run) if phases else set()
    return _calls(run, phases, lambda *_: None, during)


def phases_on_other_threads(run: Run) -> tuple[PhaseCalls, ...]:
    """The phases on other threads while a step was open, which are not part of its time."""
    return _calls(run, _in_scope(run, Scope.OTHER_THREADS), lambda *_: None)


def phases_without_steps(run: Run) -> tuple[PhaseCalls, ...]:
    """Return all phases of a run in which no step ended."""
    if run.step_totals.count:
        return ()
    return _calls(run, _in_scope(run, None), _device_times(run, None))


def _in_scope(run: Run, scope: Scope | None) -> list[tuple[int, PhaseStatistics]]:
    """The phases in one scope or all, each before those inside it."""
    phases = run.phases if scope is None else run.phases_in(scope)
    chosen = (path for path, name in enumerate(run.paths) if name in phases)
    return [(path, phases[run.paths[path]]) for path in in_tree_order(run.path_parents, chosen)]


def _calls(
    run: Run,
    phases: Iterable[tuple[int, PhaseStatistics]],
    device: Callable[[int, PhaseStatistics], PhaseOnDevice | None],
    during_steps: Iterable[int] = (),
) -> tuple[PhaseCalls, ...]:
    return tuple(
        PhaseCalls(
            path=run.paths[path],
            calls=phase.count,
            total_ns=phase.host.total_ns,
            mean_ns=_mean_ns(phase.host),
            p50_ns=phase.host.p50_ns,
            p95_ns=phase.host.p95_ns,
            # As far as they lie in a step, self times are what that step has outside phases.
            self_ns=None if path in during_steps else _mean_ns(phase.self_host),
            device_ns=_mean_ns(phase.device),
            blocked_ns=_mean_ns(phase.blocked),
            during_steps=path in during_steps or None,
            device=device(path, phase),
        )
        for path, phase in phases
        if phase.host is not None
    )


def _unless_all(statistic: Statistic | None, calls: int) -> int | None:
    return None if statistic is None or statistic.count == calls else statistic.count


def _mean_ns(statistic: Statistic | None) -> float | None:
    return statistic.mean_ns if statistic is not None and statistic.count else None


def _device_times(
    run: Run, scope: Scope | None
) -> Callable[[int, PhaseStatistics], PhaseOnDevice | None]:
    found = analysis.of(run)
    ahead, bottlenecks = found.queue_times(scope), found.bottlenecks(scope)

    def of_phase(path: int, phase: PhaseStatistics) -> PhaseOnDevice | None:
        device, lead, judged = phase.device, ahead.get(path), bottlenecks.get(path)
        if device is None or not device.count:
            return None
        is_judged = judged is not None and judged.kind != Bottleneck.UNKNOWN
        queue_time_calls = 0 if lead is None else lead.spans
        limit = str(judged) if is_judged else None
        if limit is None and lead is not None and lead.follows_host(device.p50_ns):
            limit = "host"
        return PhaseOnDevice(
            calls=_unless_all(device, phase.count),
            mean_ns=device.mean_ns,
            p50_ns=device.p50_ns,
            p95_ns=device.p95_ns,
            queue_time_calls=None if queue_time_calls == device.count else queue_time_calls,
            queue_time_p50_ns=None if lead is None else lead.p50_ns,
            queue_time_p95_ns=None if lead is None else lead.p95_ns,
            bottleneck=limit,
        )

    return of_phase


def device_clocks(run: Run) -> tuple[ClockFit, ...]:
    """Return the clocks of the devices that were timed."""
    return tuple(
        ClockFit(clock.device, clock.uncertainty_ns, clock.drift_ppm) for clock in run.device_clocks
    )


def queue_time_uncertainty_ns(run: Run) -> float | None:
    """Return by how much a phase's `queue_time_` values may be off, at worst."""
    scope = Scope.STEP if run.step_totals.count else None
    ahead = analysis.of(run).queue_times(scope)
    return max((one.uncertainty_ns for one in ahead.values()), default=None)


def other_threads_parts(phases: Sequence[PhaseCalls]) -> Iterator[Part]:
    """Yield the phases of other threads; nothing if there are none."""
    if phases:
        yield Sentence()
        yield Sentence(
            "Other threads while a step was open (not part of its time): per call", "title"
        )
        yield from per_call_parts(phases)


def per_call_parts(phases: Sequence[PhaseCalls]) -> Iterator[Part]:
    """A table of times per call."""
    total_ns = max(one.total_ns for one in phases)
    means_ns = (one.mean_ns for one in phases if one.mean_ns is not None)
    unit = Unit.fitting(max(means_ns, default=total_ns), total_ns)
    shown = 6 if any(one.blocked_ns or one.device_ns is not None for one in phases) else 4
    rows = {}
    for one in phases:
        times_ns = (one.mean_ns, one.p50_ns, one.p95_ns, one.self_ns, one.device_ns, one.blocked_ns)
        cells = [str(one.calls), *map(unit.text, (one.total_ns, *times_ns[:shown]))]
        rows[one.path] = Row("", cells, note="*" if one.during_steps else "")
    times = [f"mean {unit.name}", "p50", "p95", "self", "device", "blocked"][:shown]
    yield from phase_table(["phase", "calls", f"total {unit.name}", *times], rows)
