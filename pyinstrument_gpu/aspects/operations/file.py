# SPDX-License-Identifier: Apache-2.0
"""The OPERATIONS document: what a window of torch.profiler has seen. See docs/run-file.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyinstrument_gpu.aspects.operations.data import DeviceGaps, DeviceUse, Operation, Operations
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.json_document import Schema, checked


def encode(operations: Operations) -> dict[str, Any]:
    """The document as an object of JSON."""
    device = operations.device
    return {
        "profiled": operations.profiled,
        "first_step": operations.first_step,
        "last_step": operations.last_step,
        "steps": operations.steps,
        "operations": [
            [
                *(one.name, one.path, one.module),
                *(one.calls, one.host_ns, one.device_ns, one.launches),
            ]
            for one in operations.operations
        ],
        "annotations_ns": operations.annotations_ns,
        "device": None
        if device is None
        else {
            "devices": device.devices,
            "busy_ns": device.busy_ns,
            "elapsed_ns": device.elapsed_ns,
            "gaps": [[one.path, one.count, one.total_ns, one.longest_ns] for one in device.gaps],
        },
        "stopped_ns": operations.stopped_ns,
        "modules_unknown": operations.modules_unknown,
        "trace": operations.trace,
        "notes": operations.notes,
    }


def _are_steps(value: Any) -> bool:
    return fits.row(fits.count, fits.count)(value) and bool(value[0] <= value[1])


def _are_gaps(value: Any) -> bool:
    """Path, number, sum and the longest."""
    is_row = fits.row(_is_text, fits.count, fits.count, fits.count)(value)
    return is_row and bool(value[3] <= value[2])


def _is_device(value: Any) -> bool:
    return _has_times(value) and bool(value["busy_ns"] <= value["elapsed_ns"])


_is_text, _is_count = fits.or_null(fits.string()), fits.or_null(fits.count)
_has_times = fits.fields(
    devices=fits.count,
    busy_ns=fits.count,
    elapsed_ns=fits.count,
    gaps=fits.or_null(fits.list_of(_are_gaps)),
)
_is_operation = fits.row(
    *(_is_text, _is_text, _is_text, fits.count, fits.count, _is_count, _is_count)
)
_REQUIRED: Schema = dict.fromkeys(("steps", "annotations_ns", "stopped_ns"), fits.count)
_OPTIONAL: Schema = {
    "profiled": fits.list_of(_are_steps),
    "first_step": _is_count,
    "last_step": _is_count,
    "operations": fits.list_of(_is_operation),
    "device": fits.or_null(_is_device),
    "modules_unknown": _is_text,
    "trace": _is_text,
    "notes": fits.list_of(fits.string()),
}


def decode_operations(data: bytes) -> Operations:
    """
    Raises:
        RunFileDamagedError: the document makes no sense.
    """
    found = checked(data, "OPERATIONS", _REQUIRED, _OPTIONAL)
    device = found.pop("device", None)
    rows = {
        "profiled": tuple((first, last) for first, last in found.get("profiled", [])),
        "operations": tuple(Operation(*one) for one in found.get("operations", [])),
        "notes": tuple(found.get("notes", [])),
    }
    return Operations(**{**found, **rows}, device=None if device is None else _device(device))


def _device(found: Mapping[str, Any]) -> DeviceUse:
    gaps = tuple(DeviceGaps(*one) for one in found.get("gaps") or ())
    return DeviceUse(found["devices"], found["busy_ns"], found["elapsed_ns"], gaps)
