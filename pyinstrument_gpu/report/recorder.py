# SPDX-License-Identifier: Apache-2.0
"""The part of the report about the recorder itself: what it cost, and what it dropped."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.model.statistics import Scope
from pyinstrument_gpu.report.table import counted, duration, printable, small_percent

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
    "device_no_context": ("span", "without device time: its thread had no CUDA context"),
    "device_preparing": ("span", "without device time: the events were not ready yet"),
    "device_ring_full": ("span", "without device time: all events were in use"),
    "device_capturing": ("span", "without device time: a CUDA graph was being captured"),
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


def recorder_cost(run: RunData) -> dict[str, float | None]:
    """What recording cost the program, as the recorder measured itself. None is unknown.

    `share_of_step` is of phases and steps together, and of phases alone where `step_ns` is unknown.
    `core_share` is what the recorder's own thread used of one core. Events time the device.
    """
    phases = sum(phase.count for phase in run.phases_in(Scope.STEP).values())
    steps, total_ns = run.step_totals.count, run.step_totals.duration.total_ns
    phase_ns, step_ns = run.overhead.get("phase_ns"), run.overhead.get("step_ns")
    cost_ns = None if phase_ns is None else phases * phase_ns + steps * (step_ns or 0)
    timing = run.device_timing
    records, record_ns = (0, 0) if timing is None else (timing.records, timing.record_ns)
    return {
        "phase_ns": phase_ns,
        "step_ns": step_ns,
        "phases_per_step": phases / steps if steps else None,
        "share_of_step": cost_ns / total_ns if cost_ns is not None and total_ns else None,
        "core_share": run.harvester_cpu_ns / run.duration_ns if run.duration_ns else None,
        "event_ns": record_ns / records if records else None,
        "events_per_step": records / steps if records and steps else None,
        "event_share_of_step": record_ns / total_ns if records and total_ns else None,
    }


def recorder_section(run: RunData) -> Iterator[Text]:
    cost = recorder_cost(run)
    phase_ns, step_ns, share = cost["phase_ns"], cost["step_ns"], cost["share_of_step"]
    phases, core_share = cost["phases_per_step"], cost["core_share"]
    events, event_share = cost["events_per_step"], cost["event_share_of_step"]
    yield Text()
    facts = ["cost per phase not measured" if phase_ns is None else f"{phase_ns:.1f} ns per phase"]
    if phases is not None:
        facts += [] if step_ns is None else [f"{step_ns:,.0f} ns per step"]
        facts.append(f"{phases:.1f} phases per step")
    if share is not None:
        what = "phases alone" if step_ns is None else "together"
        facts.append(f"{what} {small_percent(share, 1)} of the step")
    if core_share is not None:
        facts.append(f"its own thread {small_percent(core_share, 1)} of one core")
    yield Text("Recorder: " + ", ".join(facts), "dim")
    if cost["event_ns"] is not None:
        facts = [f"{duration(cost['event_ns'])} per event"]
        if events is not None and event_share is not None:
            facts.append(f"{events:.1f} events per step with those outside of steps")
            facts.append(f"as much as {small_percent(event_share, 1)} of the steps' time")
        yield Text("Device timing, on the host: " + ", ".join(facts), "dim")
    drops = {cause: count for cause, count in run.dropped.items() if count}
    if not drops:
        yield Text("Nothing dropped", "dim")
    for cause, count in drops.items():
        noun, fate = _DROPS.get(cause, ("", ""))
        what = f"{counted(count, noun)} {fate}" if noun else f"{count:,}"
        yield Text(f"Dropped ({printable(cause)}): {what}", "yellow")
