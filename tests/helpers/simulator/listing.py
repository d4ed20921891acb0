# SPDX-License-Identifier: Apache-2.0
"""A simulated program in a readable form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from tests.helpers.simulator.duration import Duration
from tests.helpers.simulator.operations import Launches, Operation, Phase
from tests.helpers.simulator.program import Program
from tests.helpers.simulator.recorder import FIRST_LINE


def listing(program: Program) -> Iterator[str]:
    """Its lines. Times are in microseconds."""
    recorder = program.recorder
    yield (
        f"{program.steps} steps, {program.ranks} ranks, queue of {program.queue_depth}, "
        f"warm-up {program.warm_up_steps} x {program.warm_up_factor:.1f}, "
        f"{'a device' if program.has_device else 'no device'}"
    )
    yield (
        f"recorder: times device {recorder.times_device}, every {recorder.every}, watches "
        f"{recorder.watches}, uncertainty {_us(recorder.uncertainty_ns)}, knows the program "
        f"{recorder.knows_program}"
    )
    if program.loader is not None:
        loader = program.loader
        yield (
            f"loader: {loader.workers} workers, prefetch {loader.prefetch_factor}, "
            f"{_duration(loader.make)} a batch, {_duration(loader.fetch)} to fetch one, "
            f"{_us(loader.startup_ns)} to start, epochs of {loader.epoch}, pauses of "
            f"{_us(loader.pause_ns)} every {loader.pause_every}"
        )
    yield "step:"
    yield from _body(program.step, 1)
    yield "between:"
    yield from _body(program.between, 1)
    for periodic in program.periodic:
        yield f"{periodic.name}: every {periodic.every} steps, {periodic.turns} times"
        yield from _body(periodic.body, 1)


def _body(body: Sequence[Operation], depth: int) -> Iterator[str]:
    indent = "    " * depth
    for operation in body:
        if isinstance(operation, Phase):
            often = f" every {operation.every} times" if operation.every > 1 else ""
            yield f"{indent}{operation.name}{often}:"
            yield from _body(operation.body, depth + 1)
        elif isinstance(operation, Launches):
            yield (
                f"{indent}{len(operation.kernels_ns)} launches, host {_duration(operation.host)} "
                f"each, device {_us(sum(operation.kernels_ns))} in all, times "
                f"{_duration(operation.device, 1.0)}"
            )
        else:
            yield f"{indent}{type(operation).__name__.lower()} {_rest(operation)}"


def _rest(operation: Operation) -> str:
    parts = []
    for each in fields(operation):
        value = getattr(operation, each.name)
        if each.name == "place":
            continue
        if each.name == "site":
            parts.append(f"site {value} (line {FIRST_LINE + value})")
        elif isinstance(value, Duration):
            parts.append(f"{each.name} {_duration(value)}")
        else:
            parts.append(f"{each.name} {value}")
    return ", ".join(parts)


def _duration(duration: Duration, unit_ns: float = 1e3) -> str:
    text = f"{duration.typical_ns / unit_ns:.1f}"
    if duration.spread:
        text += f" ±{duration.spread:.0%}"
    if duration.second_share:
        text += f" ({duration.second_share:.0%} x {duration.second_factor:.1f})"
    if duration.stall_share:
        text += f" (stalls {duration.stall_share:.2%} of {_us(duration.stall_ns)})"
    return text


def _us(ns: float) -> str:
    return f"{ns / 1e3:.1f} us"
