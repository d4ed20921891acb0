# SPDX-License-Identifier: Apache-2.0
"""The STATE document: how far a recording was when it last wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.json_document import Schema, checked, picked
from pyinstrument_gpu.core.record import DeviceTimingSummary


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


def _are_counts(value: Any) -> bool:
    return isinstance(value, dict) and all(map(fits.count, value.values()))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300


_COUNTS = ("spans", "steps", "device_times", "step_drops", "harvester_cpu_ns", "phases_recorded")
_is_time = fits.integer(0, TIME_LIMIT_NS)
_is_serial = fits.integer(0, 2**32 - 1)
_is_serial_or_none = fits.integer(-1, 2**32 - 1)
_is_depth = fits.integer(0, 2**16 - 1)
_REQUIRED: Schema = {"now_ns": _is_time, "final": fits.truth, **dict.fromkeys(_COUNTS, fits.count)}
_OPTIONAL: Schema = {
    "anchor": _are_counts,
    "metrics": fits.count,
    "collectives": fits.count,
    "dropped": _are_counts,
    "open_step": fits.or_null(
        fits.fields(
            serial=_is_serial,
            thread=_is_serial,
            begin_ns=_is_time,
            samples=fits.or_null(_is_number),
            items=fits.count,
        )
    ),
    "open": fits.list_of(fits.row(_is_serial, _is_serial, _is_time, _is_serial_or_none, _is_depth)),
    "device": fits.or_null(
        fits.fields(
            every=fits.integer(1, fits.COUNT_LIMIT),
            records=fits.count,
            record_ns=fits.count,
            pending=fits.or_null(fits.list_of(fits.row(fits.count, fits.count))),
        )
    ),
    "error": fits.or_null(fits.string()),
}


def decode_state(data: bytes) -> State:
    found = checked(data, "STATE", _REQUIRED, _OPTIONAL)
    step, device = found.pop("open_step", None), found.pop("device", None)
    opened = found.pop("open", [])
    return State(
        **found,
        open_step=None if step is None else _open_step(step),
        open_phases=tuple(OpenPhaseState(*phase) for phase in opened),
        device=None if device is None else _device(device),
    )


def _open_step(found: Mapping[str, Any]) -> OpenStepState:
    step = OpenStepState(**picked(found, OpenStepState._fields))
    return step if step.samples is None else step._replace(samples=float(step.samples))


def _device(found: Mapping[str, Any]) -> DeviceState:
    timing = DeviceTimingSummary(found["every"], found["records"], found["record_ns"])
    pending = found.get("pending") or ()
    return DeviceState(timing, tuple((path, spans) for path, spans in pending))
