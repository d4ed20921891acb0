# SPDX-License-Identifier: Apache-2.0
"""The section on the recorder itself: what it cost, and what it dropped."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import duration, printable, small_percent

_DROPS = {
    "ring_full": ("span", "missing from the history (a ring was full), still in the statistics"),
    "span_history": ("span", "removed from the history to make room, still in the statistics"),
    "step_history": ("step", "removed from the history to make room, still in the statistics"),
    "disk_error": ("span", "missing from the history (the disk failed), still in the statistics"),
    "depth": ("span", "not recorded: nested too deeply"),
    "names": ("phase", "recorded under a common name: too many names"),
    "long_names": ("phase", "recorded under the first 256 characters of a longer name"),
    "paths": ("span", "recorded under a common path: too many paths"),
    "threads": ("thread", "recorded under the last entry: too many threads"),
    "unmatched_ends": ("end", "without a matching begin"),
    "nested_steps": ("step", 'inside another step, recorded as a phase named "step"'),
    "open_at_thread_end": ("phase", "not recorded: still open when its thread ended"),
    "no_memory": ("record", "not made: there was no memory for it"),
    "device_no_context": ("span", "without device time: no CUDA context, or another one's stream"),
    "device_preparing": ("span", "without device time: the events were not ready yet"),
    "device_ring_full": ("span", "without device time: all events were in use"),
    "device_capturing": ("span", "without device time: a CUDA graph was being captured"),
    "device_graph_nodes": ("span", "not marked in a CUDA graph, which had its marks already"),
    "device_graph_replays": ("time", "of phases in CUDA graphs overwritten before it was read"),
    "device_graph_ambiguous": (
        "time",
        "of phases in CUDA graphs left out: which replay it was of is unknown",
    ),
    "device_side_stream": (
        "span",
        "without device time: on a side stream, where timing could prevent overlap because of "
        "CUDA_DEVICE_MAX_CONNECTIONS=1",
    ),
    "device_stream_changed": (
        "span",
        "without device time: begun on one stream and ended on another",
    ),
    "device_budget": ("span", "without device time: outside steps, with the budget used up"),
    "device_failed": ("span", "without device time: switched off after a driver error"),
    "device_unfinished": ("span", "without device time: not completed in time at the end"),
    "device_history": (
        "device time",
        "removed from the history to make room, still in the statistics",
    ),
    "metrics": ("value", "of metrics not recorded: too many"),
}


@dataclass(frozen=True)
class Drop:
    """A number of things that were not kept, by cause.

    Attributes:
        cause: why, in a word.
        count: how many.
        what: of what, and what became of it.
    """

    cause: str
    count: int
    what: str | None


@dataclass(frozen=True)
class Recorder:
    """The cost of recording for the program, as the recorder measured itself.

    Attributes:
        phase_ns, step_ns: on the host, per phase and per step.
        phases_per_step: how many phases a step has.
        share_of_step: of phases and steps together; of phases alone where `step_ns` is unknown.
        core_share: what the recorder's own thread used of one core.
        event_ns: on the host, per event that timed the device.
        events_per_step: how many of these a step has, those outside of steps included.
        event_share_of_step: of all events.
        dropped: what was not kept; empty where nothing was dropped.
    """

    phase_ns: float | None
    step_ns: float | None
    phases_per_step: float | None
    share_of_step: float | None
    core_share: float | None
    event_ns: float | None
    events_per_step: float | None
    event_share_of_step: float | None
    dropped: tuple[Drop, ...]


def recorder(run: Run) -> Recorder:
    phases = sum(phase.count for phase in run.phases_in(Scope.STEP).values())
    steps, total_ns = run.step_totals.count, run.step_totals.duration.total_ns
    phase_ns, step_ns = run.overhead.get("phase_ns"), run.overhead.get("step_ns")
    cost_ns = None if phase_ns is None else phases * phase_ns + steps * (step_ns or 0)
    timing = run.device_timing
    records, record_ns = (0, 0) if timing is None else (timing.records, timing.record_ns)
    return Recorder(
        phase_ns=phase_ns,
        step_ns=step_ns,
        phases_per_step=phases / steps if steps else None,
        share_of_step=cost_ns / total_ns if cost_ns is not None and total_ns else None,
        core_share=run.harvester_cpu_ns / run.duration_ns if run.duration_ns else None,
        event_ns=record_ns / records if records else None,
        events_per_step=records / steps if records and steps else None,
        event_share_of_step=record_ns / total_ns if records and total_ns else None,
        dropped=tuple(_drop(cause, count) for cause, count in run.dropped.items() if count),
    )


def _drop(cause: str, count: int) -> Drop:
    if cause not in _DROPS:
        return Drop(cause, count, None)
    noun, fate = _DROPS[cause]
    return Drop(cause, count, f"{noun if count == 1 else noun + 's'} {fate}")


def recorder_parts(cost: Recorder) -> Iterator[Sentence]:
    yield Sentence()
    facts = [
        "cost per phase not measured"
        if cost.phase_ns is None
        else f"{cost.phase_ns:.1f} ns per phase"
    ]
    if cost.phases_per_step is not None:
        facts += [] if cost.step_ns is None else [f"{cost.step_ns:,.0f} ns per step"]
        facts.append(f"{cost.phases_per_step:.1f} phases per step")
    if cost.share_of_step is not None:
        what = "phases alone" if cost.step_ns is None else "together"
        facts.append(f"{what} {small_percent(cost.share_of_step, 1)} of the step")
    if cost.core_share is not None:
        facts.append(f"its own thread {small_percent(cost.core_share, 1)} of one core")
    yield Sentence("Recorder: " + ", ".join(facts), "note")
    if cost.event_ns is not None:
        facts = [f"{duration(cost.event_ns)} per event"]
        if cost.events_per_step is not None and cost.event_share_of_step is not None:
            facts.append(f"{cost.events_per_step:.1f} events per step with those outside of steps")
            facts.append(
                f"as much as {small_percent(cost.event_share_of_step, 1)} of the steps' time"
            )
        yield Sentence("Device timing, on the host: " + ", ".join(facts), "note")
    if not cost.dropped:
        yield Sentence("Nothing dropped", "note")
    for drop in cost.dropped:
        what = "" if drop.what is None else f" {drop.what}"
        yield Sentence(f"Dropped ({printable(drop.cause)}): {drop.count:,}{what}", "warn")
