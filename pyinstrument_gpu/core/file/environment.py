# SPDX-License-Identifier: Apache-2.0
"""The ENVIRONMENT document: where a run was recorded, one schema for all that it may say.

Whoever reads `Run.environment` relies on these types and ranges, and on file names, numbers of
processes and times made of them. So what does not fit is left out, and the run says so.
"""

from __future__ import annotations

import math
from typing import Any

from pyinstrument_gpu.core import program_facts
from pyinstrument_gpu.core.clocks import LATEST_START_NS
from pyinstrument_gpu.core.file import fits
from pyinstrument_gpu.core.file.json_document import Object, Schema, fitting, json_object

_MOST_ITEMS = 10_000
_PID_LIMIT = 1 << 31  # what a process id, and a rank of a collective, is counted in


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


def _is_number(value: Any) -> bool:
    """A finite number from 0 on."""
    return type(value) in (int, float) and 0 <= value < 1e18 and math.isfinite(value)


_is_text = fits.text(1000)
_is_time_ns = fits.integer(0, LATEST_START_NS)
_is_version = fits.matches(r"[0-9A-Za-z.+!_-]{1,100}")
_is_copy = fits.fields(
    pinned=fits.truth, non_blocking=fits.truth, count=fits.count, bytes=fits.count
)
_is_phase_line = fits.fields(phase=_is_text, file=_is_os_text, line=fits.integer(0, _PID_LIMIT))

SCHEMA: Schema = {
    "host": _is_text,
    "rank": fits.integer(0, _PID_LIMIT),
    "world_size": fits.integer(1, _PID_LIMIT),
    "local_rank": fits.integer(0, _PID_LIMIT),
    "job": _is_text,
    "restarts": fits.integer(0, _PID_LIMIT),
    "pid": fits.integer(1, _PID_LIMIT),
    "python": _is_version,
    "platform": _is_text,
    "cores": fits.integer(1, _PID_LIMIT),
    "torch": _is_text,
    "cuda": fits.or_null(_is_text),
    "gpus": fits.list_of(_is_text, _MOST_ITEMS),
    "gpus_error": _is_os_text,
    "command": fits.list_of(_is_os_text, _MOST_ITEMS),
    "cwd": fits.or_null(_is_absolute_path),
    "program_folder": _is_absolute_path,
    "started": fits.matches(
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})"
    ),
    "version": _is_version,
    "revision": fits.matches(r"[0-9A-Za-z]{1,64}"),
    "run_id": fits.matches(r"[0-9a-f]{16}"),
    "clock": Object(
        {
            "kind": fits.matches(r"[a-z_]{1,100}"),
            "frequency_hz": _is_number,
        }
    ),
    "anchor": Object(
        {
            "run_ns": _is_time_ns,
            "monotonic_ns": _is_time_ns,
            "monotonic_raw_ns": _is_time_ns,
            "realtime_ns": _is_time_ns,
        }
    ),
    "overhead": Object({"phase_ns": _is_number, "step_ns": _is_number}),
    "limits": Object({"history_spans": fits.or_null(fits.count), "max_bytes": fits.count}),
    "device_timing": Object(
        {
            "mode": _is_text,
            "budget": fits.or_null(_is_number),
            "share_boundaries_ns": fits.count,
        },
        may_be_null=True,
    ),
    "children_cpu_s": _is_number,
    "optimizer_seen": fits.or_null(fits.truth),
    "copies_to_device": fits.list_of(_is_copy, _MOST_ITEMS),
    "phase_lines": fits.list_of(_is_phase_line, _MOST_ITEMS),
    "module_notes": fits.list_of(_is_text, _MOST_ITEMS),
    "program_end": Object(
        {"exit_code": fits.integer(0, 256), "exception": _is_text, "lost_peer": fits.truth}
    ),
    "framework": _is_text,
    "framework_steps": fits.count,
    program_facts.KEY: Object(
        {
            "loader_workers": fits.count,
            "loader_pins": fits.truth,
            "loader_prefetch": fits.count,
            "loader_persistent": fits.truth,
            "other_streams": fits.truth,
            "ranks": fits.integer(1, _PID_LIMIT),
            "rendezvous_ns": fits.count,
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
    facts = fitting(json_object(data, "ENVIRONMENT"), SCHEMA, left_out)
    return facts, tuple(left_out)
