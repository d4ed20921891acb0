# SPDX-License-Identifier: Apache-2.0
"""The STATE document: how far a recording was when it last wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, field

from pyinstrument_gpu.core.file.device_clocks import TIME_LIMIT_NS
from pyinstrument_gpu.core.file.items import NONE
from pyinstrument_gpu.core.file.json_document import Count, decode_object
from pyinstrument_gpu.core.record import DeviceTimingSummary

_Time = Annotated[int, Meta(ge=0, lt=TIME_LIMIT_NS)]
_Serial = Annotated[int, Meta(ge=0, lt=NONE)]
_Samples = Annotated[float, Meta(gt=-1e300, lt=1e300)]


class OpenStepState(Struct, frozen=True, kw_only=True):
    """The step that is open, with its serial number."""

    serial: _Serial
    thread: _Serial
    begin_ns: _Time
    samples: _Samples | None = None
    items: Count


class OpenPhaseState(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A phase that is open, with the serial number of its step (-1 none)."""

    thread: _Serial
    path: _Serial
    begin_ns: _Time
    step_serial: Annotated[int, Meta(ge=-1, lt=NONE)]
    depth: Annotated[int, Meta(ge=0, lt=2**16 - 1)]


class DeviceState(Struct, frozen=True):
    """The state of device timing; `pending` are pairs of a path and a number of spans."""

    every: Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
    records: Count
    record_ns: Count
    pending: tuple[tuple[Count, Count], ...] = ()

    @property
    def timing(self) -> DeviceTimingSummary:
        return DeviceTimingSummary(self.every, self.records, self.record_ns)


class State(Struct, frozen=True, kw_only=True):
    """The STATE document. Its defaults are those of a run of which nothing is known."""

    now_ns: _Time = 0
    final: bool = False
    active_ns: _Time = 0
    anchor: Mapping[str, Count] = field(default_factory=dict)
    spans: Count = 0
    steps: Count = 0
    device_times: Count = 0
    step_drops: Count = 0
    metrics: Count = 0
    collectives: Count = 0
    dropped: Mapping[str, Count] = field(default_factory=dict)
    harvester_cpu_ns: Count = 0
    phases_recorded: Count = 0
    open_step: OpenStepState | None = None
    open_phases: tuple[OpenPhaseState, ...] = field(default=(), name="open")
    device: DeviceState | None = None
    error: str | None = None


class _Document(State, frozen=True, kw_only=True):
    """A STATE as it is written: what every version has said can't be missing."""

    now_ns: _Time
    final: bool
    spans: Count
    steps: Count
    device_times: Count
    step_drops: Count
    harvester_cpu_ns: Count
    phases_recorded: Count


def decode_state(data: bytes) -> State:
    return decode_object(data, "STATE", _Document)
