# SPDX-License-Identifier: Apache-2.0
"""Exports the phases of runs as lines of JSON, for `jq` and the like."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import BinaryIO

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export import Exporter


def write(runs: Sequence[Run], sink: BinaryIO, *, advance: Callable[[int], None]) -> None:
    """Write a line for each phase of each run, with its path and its times on the host."""
    for run in runs:
        for path, phase in run.phases.items():
            line = {
                "rank": run.environment.get("rank"),
                "phase": path,
                "count": phase.count,
                "host_ns": None if phase.host is None else phase.host.total_ns,
            }
            sink.write(json.dumps(line).encode() + b"\n")
        advance(len(run.spans))


EXPORTER = Exporter(write, {".jsonl": "a line of JSON for each phase"})
