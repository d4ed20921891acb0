# SPDX-License-Identifier: Apache-2.0
"""A trace of torch.profiler's, as `export_chrome_trace` writes it: its times of each step."""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STEP = "ProfilerStep#"
_LAUNCHES = {"cuda_runtime", "cuda_driver"}
_ON_DEVICE = {"kernel", "gpu_memcpy", "gpu_memset"}


@dataclass(frozen=True)
class ProfiledStep:
    """One step's times.

    Attributes:
        host_ns: of the step itself.
        device_ns: from the begin of the first device activity that was launched in it to the end of
            the last; None if there is none.
        blocked_ns: of the operators that wait for the device, and of calls that wait outside of
            operators.
    """

    host_ns: float
    device_ns: float | None
    blocked_ns: float


def read_trace(path: Path) -> dict[int, ProfiledStep]:
    """The steps by their numbers."""
    return steps_of(json.loads(path.read_text())["traceEvents"])


def kernel_times_ns(path: Path, name: str) -> list[float]:
    """The times of the kernels with this in their names, in their order."""
    events = json.loads(path.read_text())["traceEvents"]
    kernels = [one for one in events if one.get("cat") == "kernel" and name in one["name"]]
    return [1e3 * one["dur"] for one in sorted(kernels, key=lambda one: one["ts"])]


def steps_of(events: Sequence[dict[str, Any]]) -> dict[int, ProfiledStep]:
    complete = [event for event in events if event.get("ph") == "X"]
    steps = sorted(
        (
            (event["ts"], event["ts"] + event["dur"], int(event["name"].removeprefix(_STEP)))
            for event in complete
            if event.get("cat") == "user_annotation" and event["name"].startswith(_STEP)
        ),
    )
    begins = [begin for begin, _, _ in steps]

    def step_at(time: float) -> int | None:
        place = bisect.bisect_right(begins, time) - 1
        return steps[place][2] if place >= 0 and time < steps[place][1] else None

    launched = {
        event["args"]["correlation"]: step_at(event["ts"])
        for event in complete
        if event.get("cat") in _LAUNCHES and "correlation" in event.get("args", {})
    }
    edges: dict[int, tuple[float, float]] = {}
    for event in complete:
        if event.get("cat") in _ON_DEVICE:
            number = launched.get(event["args"].get("correlation"))
            if number is not None:
                begin, end = event["ts"], event["ts"] + event["dur"]
                first, last = edges.get(number, (begin, end))
                edges[number] = min(first, begin), max(last, end)
    blocked: dict[int, float] = {}
    for wait in _waits(complete):
        number = step_at(wait["ts"])
        if number is not None:
            blocked[number] = blocked.get(number, 0.0) + wait["dur"]
    return {
        number: ProfiledStep(
            host_ns=1e3 * (end - begin),
            device_ns=1e3 * (edges[number][1] - edges[number][0]) if number in edges else None,
            blocked_ns=1e3 * blocked.get(number, 0.0),
        )
        for begin, end, number in steps
    }


def _waits(complete: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Of operators inside each other the outermost, where a call inside of it waits; and such calls
    without an operator around them."""
    of_thread: dict[Any, list[dict[str, Any]]] = {}
    for event in complete:
        if event.get("cat") == "cpu_op" or _synchronizes(event):
            of_thread.setdefault((event.get("pid"), event.get("tid")), []).append(event)
    for events in of_thread.values():
        outermost: dict[str, Any] | None = None
        is_told = False
        # Of two that begin together the longer one is around the other.
        for event in sorted(events, key=lambda event: (event["ts"], -event["dur"])):
            if outermost is None or event["ts"] >= outermost["ts"] + outermost["dur"]:
                outermost, is_told = event, False
            if _synchronizes(event) and not is_told:
                is_told = True
                yield outermost


def _synchronizes(event: dict[str, Any]) -> bool:
    return event.get("cat") in _LAUNCHES and "Synchronize" in event["name"]
