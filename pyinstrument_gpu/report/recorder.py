# SPDX-License-Identifier: Apache-2.0
"""The part of the report about the recorder itself: what it cost, and what it dropped."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.document.recorder import Recorder
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import duration, printable, small_percent


def recorder_section(cost: Recorder) -> Iterator[Sentence]:
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
