# SPDX-License-Identifier: Apache-2.0
"""What is watched as a stream of JSON, one object a second, for scripts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from pyinstrument_gpu.core.file.run_files import left_out
from pyinstrument_gpu.errors import RunFileVersionError
from pyinstrument_gpu.watch.clocks import Clocks
from pyinstrument_gpu.watch.live_run import LiveRun
from pyinstrument_gpu.watch.watch import Watch
from pyinstrument_gpu.watch.watched_run import UnknownFormat, Unreadable

VERSION = 1
"""Of the objects: it changes when a key changes its meaning, or goes. Keys may be added."""


def stream(
    watch: Watch,
    write: Callable[[str], None],
    wait: Callable[[], None],
    clocks: Callable[[], Clocks],
) -> None:
    """Write a line of JSON for each look, until nothing more will come of any run.

    Args:
        write: gets each line, without its end.
        wait: comes back when it is time for the next look.
        clocks: read at each look.

    Raises:
        RunFileVersionError: none of the runs has a format that is known.
    """
    while True:
        now = clocks()
        looks = watch.look(now)
        write(json.dumps(facts(looks, now), allow_nan=False))
        unknown = {run.file: run.reason for run in looks if isinstance(run, UnknownFormat)}
        if looks and len(unknown) == len(looks):
            raise RunFileVersionError("\n".join(left_out(unknown)))
        if all(
            run.sign_of_life.condition.is_final
            if isinstance(run, LiveRun)
            else isinstance(run, UnknownFormat)
            for run in looks
        ):
            return
        wait()


def facts(looks: list[LiveRun | Unreadable], clocks: Clocks) -> dict[str, Any]:
    """One object of the stream: see docs/watch.md."""
    return {
        "version": VERSION,
        "realtime_ns": clocks.realtime_ns,
        "runs": [dataclasses.asdict(look) for look in looks],
    }
