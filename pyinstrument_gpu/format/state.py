# SPDX-License-Identifier: Apache-2.0
"""The STATE document: how far a recording was when it last wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyinstrument_gpu.format.blocks import nonsense
from pyinstrument_gpu.format.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.model.device_timing_summary import DeviceTimingSummary


class OpenStepState(NamedTuple):
    """The step that is open, with its serial number."""

    serial: int
    thread: int
    begin_ns: int
    samples: float | None
    items: int


class OpenPhaseState(NamedTuple):
    """A phase that is open, with the serial number of its step (-1 none)."""

    thread: int
    path: int
    begin_ns: int
    step_serial: int
    depth: int


class DeviceState(NamedTuple):
    """What STATE says of device timing; `pending` are pairs of a path and a number of spans."""

    timing: DeviceTimingSummary
    pending: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class State:
    """The STATE document. Its defaults are those of a run of which nothing is known."""

    now_ns: int = 0
    final: bool = False
    anchor: Mapping[str, int] = field(default_factory=dict)
    spans: int = 0
    steps: int = 0
    device_times: int = 0
    step_drops: int = 0
    metrics: int = 0
    collectives: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    harvester_cpu_ns: int = 0
    phases_recorded: int = 0
    open_step: OpenStepState | None = None
    open_phases: tuple[OpenPhaseState, ...] = ()
    device: DeviceState | None = None
    error: str | None = None


def decode_state(data: bytes) -> State:
    state = JsonObject.decode(data, "STATE")
    return State(
        now_ns=state.integer("now_ns", TIME_LIMIT_NS),
        final=state.boolean("final"),
        anchor=state.integers("anchor"),
        spans=state.integer("spans"),
        steps=state.integer("steps"),
        device_times=state.integer("device_times"),
        step_drops=state.integer("step_drops"),
        metrics=state.integer("metrics") if "metrics" in state.document else 0,
        collectives=state.integer("collectives") if "collectives" in state.document else 0,
        dropped=state.integers("dropped"),
        harvester_cpu_ns=state.integer("harvester_cpu_ns"),
        phases_recorded=state.integer("phases_recorded"),
        open_step=state.optional("open_step", _open_step),
        open_phases=tuple(map(_open_phase, state.list("open"))),
        device=state.optional("device", _device),
        error=state.optional_text("error"),
    )


def _open_step(step: JsonObject) -> OpenStepState:
    return OpenStepState(
        serial=step.integer("serial"),
        thread=step.integer("thread"),
        begin_ns=step.integer("begin_ns", TIME_LIMIT_NS),
        samples=step.optional_number("samples"),
        items=step.integer("items"),
    )


def _open_phase(value: Any) -> OpenPhaseState:
    if isinstance(value, list) and len(value) == len(OpenPhaseState._fields):
        phase = OpenPhaseState(*value)
        step_serial = 0 if phase.step_serial == -1 else phase.step_serial
        is_known = all(map(is_count, phase._replace(step_serial=step_serial)))
        if is_known and phase.begin_ns < TIME_LIMIT_NS:
            return phase
    raise nonsense(
        "STATE", f"open holds {value!r}, which is not [thread, path, begin_ns, step, depth]"
    )


def _device(device: JsonObject) -> DeviceState:
    timing = DeviceTimingSummary(
        every=device.integer("every"),
        records=device.integer("records"),
        record_ns=device.integer("record_ns"),
    )
    if not timing.every:
        raise nonsense("STATE device", "every = 0 should be at least 1")
    return DeviceState(timing, tuple(map(_pending, device.list("pending"))))


def _pending(value: Any) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(map(is_count, value)):
        return value[0], value[1]
    raise nonsense("STATE device", f"pending holds {value!r}, which is not [path, count]")
