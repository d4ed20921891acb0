# SPDX-License-Identifier: Apache-2.0
"""The OPERATIONS document: what a window of torch.profiler has seen. See docs/run-file.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyinstrument_gpu.format.blocks import nonsense
from pyinstrument_gpu.format.json_object import JsonObject, is_count
from pyinstrument_gpu.model.operations import DeviceGaps, DeviceUse, Operation, Operations

_Item = TypeVar("_Item")
_WHERE = "OPERATIONS"


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


def decode_operations(data: bytes) -> Operations:
    """
    Raises:
        RunFileDamagedError: the document makes no sense.
    """
    document = JsonObject.decode(data, _WHERE)
    return Operations(
        profiled=_rows(document, "profiled", _steps),
        first_step=_optional_count(document, "first_step"),
        last_step=_optional_count(document, "last_step"),
        steps=document.integer("steps"),
        operations=_rows(document, "operations", _operation),
        annotations_ns=document.integer("annotations_ns"),
        device=document.optional("device", _device),
        stopped_ns=document.integer("stopped_ns"),
        modules_unknown=document.optional_text("modules_unknown"),
        trace=document.optional_text("trace"),
        notes=_rows(document, "notes", _text),
    )


def _rows(document: JsonObject, key: str, read: Callable[[Any], _Item | None]) -> tuple[_Item, ...]:
    rows = []
    for value in document.list(key):
        item = read(value)
        if item is None:
            raise nonsense(_WHERE, f"{key} has {value!r}")
        rows.append(item)
    return tuple(rows)


def _optional_count(document: JsonObject, key: str) -> int | None:
    return None if document.document.get(key) is None else document.integer(key)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _steps(value: Any) -> tuple[int, int] | None:
    match value:
        case [first, last] if is_count(first) and is_count(last) and first <= last:
            return first, last
    return None


def _operation(value: Any) -> Operation | None:
    match value:
        case [name, path, module, calls, host_ns, device_ns, launches] if (
            _are_optional_texts(name, path, module)
            and is_count(calls)
            and is_count(host_ns)
            and (device_ns is None or is_count(device_ns))
            and (launches is None or is_count(launches))
        ):
            return Operation(name, path, module, calls, host_ns, device_ns, launches)
    return None


def _device(device: JsonObject) -> DeviceUse:
    busy_ns, elapsed_ns = device.integer("busy_ns"), device.integer("elapsed_ns")
    if busy_ns > elapsed_ns:
        raise nonsense(_WHERE, f"busy_ns = {busy_ns} is more than elapsed_ns = {elapsed_ns}")
    return DeviceUse(device.integer("devices"), busy_ns, elapsed_ns, _rows(device, "gaps", _gaps))


def _gaps(value: Any) -> DeviceGaps | None:
    match value:
        case [path, count, total_ns, longest_ns] if (
            _are_optional_texts(path)
            and is_count(count)
            and is_count(total_ns)
            and is_count(longest_ns)
            and longest_ns <= total_ns
        ):
            return DeviceGaps(path, count, total_ns, longest_ns)
    return None


def _are_optional_texts(*values: Any) -> bool:
    return all(isinstance(value, (str, type(None))) for value in values)
