# SPDX-License-Identifier: Apache-2.0
"""The part of a report on the device: its times next to the host's, and who waited for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.core.phase_tree import phase_table
from pyinstrument_gpu.parts.parts import Part, Row, Sentence
from pyinstrument_gpu.parts.words import UNKNOWN, Unit, duration
from pyinstrument_gpu.report.document import Document
from pyinstrument_gpu.report.phases import PhaseCalls, PhaseInSteps, PhaseOnDevice

_LEGEND = {
    "launch": "launch: the device waited for the host to enqueue work",
    "device": "device: it still had a backlog when the host had enqueued everything",
    "blocked": "blocked: the host waited for the device inside the phase",
    "mixed": "mixed: neither device nor host was the bottleneck most of the time",
    "device?": "device?: device, but less work on the host may save more",
    "launch?": "launch?: launch or blocked; waits for the device were not measured",
    "host": "host: began and ended with the host: all of the device's time may be waiting",
}
_TIMES = ("phase", "timed", "host", "device")
_HEADERS = (*_TIMES, "p50", "p95", "queue", "queue p95", "bottleneck")
_WIDE_ONLY = ("p50", "queue p95")


def device_parts(document: Document) -> Iterator[Part]:
    """The table of phases with device times, and notes on it; nothing if there are none."""
    phases = document.phases_without_steps if document.steps is None else document.phases
    timed = [
        (phase, phase.device, _call_ns(phase, document.step_count))
        for phase in phases
        if phase.device is not None
    ]
    if not timed:
        return
    unit = Unit.fitting(max(max(device.mean_ns, host_ns or 0) for _, device, host_ns in timed))
    rows = {}
    for phase, device, host_ns in timed:
        rows[phase.path] = Row("", _cells(device, _timed_calls(phase), host_ns, unit))
    yield Sentence()
    yield Sentence(f"On the device: {unit.name} per call, device time next to host time", "title")
    yield from phase_table(_HEADERS, rows, wide_only=_WIDE_ONLY)
    devices = [device for _, device, _ in timed]
    calls = sum(_timed_calls(phase) for phase, _, _ in timed)
    yield from _coverage(document, calls, sum(phase.calls for phase, _, _ in timed))
    known = sum(
        _timed_calls(phase) if device.queue_time_calls is None else device.queue_time_calls
        for phase, device, _ in timed
    )
    if known < calls:
        yield Sentence(
            f"queue and bottleneck cover {known:,} of {calls:,} timed calls: the others are not in "
            "the history, or have no known position in time"
        )
    yield from _legend(devices)
    yield from _clocks(document)


def _call_ns(phase: PhaseInSteps | PhaseCalls, steps: int) -> float | None:
    """The mean of a call on the host."""
    if isinstance(phase, PhaseCalls):
        return phase.mean_ns
    return None if phase.host_ns is None else phase.host_ns * steps / phase.calls


def _timed_calls(phase: PhaseInSteps | PhaseCalls) -> int:
    known = None if phase.device is None else phase.device.calls
    return phase.calls if known is None else known


def _cells(device: PhaseOnDevice, calls: int, host_ns: float | None, unit: Unit) -> list[str]:
    """Return the cells below `_HEADERS`, after the name."""
    own_ns = (host_ns, device.mean_ns, device.p50_ns, device.p95_ns)
    times_ns = (*own_ns, device.queue_time_p50_ns, device.queue_time_p95_ns)
    return [str(calls), *map(unit.text, times_ns), device.bottleneck or UNKNOWN]


def _coverage(document: Document, known: int, calls: int) -> Iterator[Sentence]:
    every = document.run.timed_every_steps or 1
    if every > 1:
        yield Sentence(
            f"The device was timed in one of every {every:,} steps, the host in all of them"
        )
    if known < calls:
        yield Sentence(
            f"Device times cover {known:,} of these phases' {calls:,} calls, host times all of them"
            + ("" if document.steps is None else ". The table above uses their mean for all calls")
        )


def _legend(shown: Sequence[PhaseOnDevice]) -> Iterator[Sentence]:
    yield Sentence("queue: how long after the host the device began a call (median)", "note")
    kinds = {device.bottleneck for device in shown}
    kinds |= {kind.rstrip("?") for kind in kinds if kind is not None}
    for kind, text in _LEGEND.items():
        if kind in kinds:
            yield Sentence(text, "note")


def _clocks(document: Document) -> Iterator[Sentence]:
    """Yield how well clocks agree."""
    worst_ns = document.queue_time_uncertainty_ns or 0
    clocks, facts = document.device_clocks, []
    for clock in clocks:
        drift = "" if clock.drift_ppm is None else f", drift {clock.drift_ppm:.1f} ppm"
        facts.append(f"GPU {clock.device} within {duration(clock.uncertainty_ns)}{drift}")
    if worst_ns > max((clock.uncertainty_ns for clock in clocks), default=0):
        facts.append(f"some times only within {duration(worst_ns)}")
    if facts:
        yield Sentence("Clocks, compared to the host's: " + "; ".join(facts), "note")
