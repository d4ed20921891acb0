# SPDX-License-Identifier: Apache-2.0
"""The ENVIRONMENT document: where a run was recorded, one schema for all that it may say.

Whoever reads `Run.environment` relies on these types and ranges, and on file names, numbers of
processes and times made of them. So what does not fit is left out, and the run says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyinstrument_gpu.format.json_object import JsonObject
from pyinstrument_gpu.model import program_facts
from pyinstrument_gpu.model.run_data import LATEST_START_NS

_MOST_CHARACTERS = 1000
_MOST_ITEMS = 10_000
_PID_LIMIT = 1 << 31  # what a process id, and a rank of a collective, is counted in
_INTEGER_LIMIT = 1 << 63

_Fits: TypeAlias = Callable[[Any], bool]
_Schema: TypeAlias = Mapping[str, _Fits]


@dataclass(frozen=True)
class _Object:
    """An object, of which each field is judged on its own. What is none has to be null, if that."""

    schema: _Schema
    may_be_null: bool = False

    def __call__(self, value: Any) -> bool:
        return value is None and self.may_be_null


def _is_text(value: Any) -> bool:
    """What can be shown as it stands: no control characters, no lone surrogates."""
    return isinstance(value, str) and len(value) <= _MOST_CHARACTERS and value.isprintable()


def _matches(pattern: str) -> _Fits:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _is_os_text(value: Any) -> bool:
    """What Python makes of the bytes that the system passes: they need not be UTF-8."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _is_absolute_path(value: Any) -> bool:
    return _is_os_text(value) and value.startswith("/")


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _integer(least: int, limit: int) -> _Fits:
    return lambda value: type(value) is int and least <= value < limit


def _is_number(value: Any) -> bool:
    """A finite number from 0 on."""
    return type(value) in (int, float) and 0 <= value < 1e18 and math.isfinite(value)


def _or_null(fits: _Fits) -> _Fits:
    return lambda value: value is None or fits(value)


def _list_of(fits: _Fits) -> _Fits:
    def is_list(value: Any) -> bool:
        return isinstance(value, list) and len(value) <= _MOST_ITEMS and all(map(fits, value))

    return is_list


def _is_copy(value: Any) -> bool:
    return isinstance(value, dict) and all(fits(value.get(key)) for key, fits in _COPY.items())


_is_count = _integer(0, _INTEGER_LIMIT)
_is_time_ns = _integer(0, LATEST_START_NS)
_is_version = _matches(r"[0-9A-Za-z.+!_-]{1,100}")

_COPY: _Schema = {
    "pinned": _is_truth,
    "non_blocking": _is_truth,
    "count": _is_count,
    "bytes": _is_count,
}

SCHEMA: _Schema = {
    "host": _is_text,
    "rank": _integer(0, _PID_LIMIT),
    "world_size": _integer(1, _PID_LIMIT),
    "local_rank": _integer(0, _PID_LIMIT),
    "job": _is_text,
    "restarts": _integer(0, _PID_LIMIT),
    "pid": _integer(1, _PID_LIMIT),
    "python": _is_version,
    "platform": _is_text,
    "cores": _integer(1, _PID_LIMIT),
    "torch": _is_text,
    "cuda": _or_null(_is_text),
    "gpus": _list_of(_is_text),
    "gpus_error": _is_os_text,
    "command": _list_of(_is_os_text),
    "cwd": _or_null(_is_absolute_path),
    "program_folder": _is_absolute_path,
    "started": _matches(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
    ),
    "version": _is_version,
    "revision": _matches(r"[0-9A-Za-z]{1,64}"),
    "run_id": _matches(r"[0-9a-f]{16}"),
    "clock": _Object(
        {
            "kind": _matches(r"[a-z_]{1,100}"),
            "frequency_hz": _is_number,
        }
    ),
    "anchor": _Object(
        {
            "run_ns": _is_time_ns,
            "monotonic_ns": _is_time_ns,
            "monotonic_raw_ns": _is_time_ns,
            "realtime_ns": _is_time_ns,
        }
    ),
    "overhead": _Object({"phase_ns": _is_number, "step_ns": _is_number}),
    "limits": _Object({"history_spans": _or_null(_is_count), "max_bytes": _is_count}),
    "device_timing": _Object(
        {
            "mode": _is_text,
            "budget": _or_null(_is_number),
            "share_boundaries_ns": _is_count,
        },
        may_be_null=True,
    ),
    "optimizer_seen": _or_null(_is_truth),
    "copies_to_device": _list_of(_is_copy),
    "module_notes": _list_of(_is_text),
    "program_end": _Object(
        {"exit_code": _integer(0, 256), "exception": _is_text, "lost_peer": _is_truth}
    ),
    "framework": _is_text,
    "framework_steps": _is_count,
    program_facts.KEY: _Object(
        {
            "loader_workers": _is_count,
            "loader_pins": _is_truth,
            "loader_prefetch": _is_count,
            "loader_persistent": _is_truth,
            "other_streams": _is_truth,
            "ranks": _integer(1, _PID_LIMIT),
            "rendezvous_ns": _is_count,
        }
    ),
}
"""What each field has to be. Fields of a newer version, which are not in here, are ignored."""


def decode_environment(data: bytes) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields that fit, and the names of those that do not.

    Raises:
        RunFileDamagedError: the document is no JSON object.
    """
    left_out: list[str] = []
    found = JsonObject.decode(data, "ENVIRONMENT").document
    return _fitting(found, SCHEMA, left_out), tuple(left_out)


def _fitting(
    found: Mapping[str, Any], schema: _Schema, left_out: list[str], prefix: str = ""
) -> dict[str, Any]:
    facts = {}
    for name, field in schema.items():
        if name not in found:
            continue
        value = found[name]
        if isinstance(field, _Object) and isinstance(value, dict):
            facts[name] = _fitting(value, field.schema, left_out, f"{prefix}{name}.")
        elif field(value):
            facts[name] = value
        else:
            left_out.append(prefix + name)
    return facts
