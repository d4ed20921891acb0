# SPDX-License-Identifier: Apache-2.0
"""A process in which a loop of steps keeps pace with a clock, and a tool runs threads beside it.

`python benchmarks/beside_training.py TOOL STEPS_PER_S SECONDS RESULTS` writes what these threads
took to a file, as JSON. background_threads.py runs it.

The CPU time is that of the thread clocks of all threads but the loop's, from the begin to the end
of a window: a thread that began within it counts, and one that ended within it does not.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PHASES = ("data", "h2d", "forward", "loss", "backward", "clip", "optimizer", "metrics")
WINDOW_BEGINS, WINDOW_ENDS = "/window-begins", "/window-ends"
"""No files: the loop's thread asks for them, so that a trace of system calls shows when."""
_WARM_UP_S = 2.0
"""Threads that have just begun do some things only once."""

Step = Callable[[], None]
Loop = Callable[[Step], None]


def free_port() -> int:
    """A port of this machine on which nobody listens."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def _ours(loop: Loop) -> None:
    import pyinstrument_gpu as pig

    def step() -> None:
        with pig.gpu_step():
            for name in PHASES:
                with pig.gpu_phase(name):
                    pass

    with tempfile.TemporaryDirectory() as folder, pig.record(Path(folder) / "run.gpurun"):
        loop(step)


def _traceml(loop: Loop) -> None:
    import torch
    from traceml_ai import trace_step
    from traceml_ai.utils.timing import timed_region

    model = torch.nn.Identity()

    def step() -> None:
        with trace_step(model):
            for name in PHASES:
                with timed_region(name):
                    pass

    loop(step)


def _resiliency(loop: Loop) -> None:
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()))
    from nvidia_resiliency_ext.inprocess import Wrapper

    def no_step() -> None:
        pass

    Wrapper()(lambda: loop(no_step))()


def _floor(loop: Loop) -> None:
    from _wake_floor import Writer  # type: ignore[import-not-found]

    def no_step() -> None:
        pass

    with tempfile.TemporaryFile() as file:
        writer = Writer(file.fileno())
        loop(no_step)
        writer.stop()


RUN_WITH: dict[str, Callable[[Loop], None]] = {
    "pyinstrument_gpu": _ours,
    "TraceML": _traceml,
    "nvidia-resiliency-ext": _resiliency,
    "floor": _floor,
}
"""For each tool, what runs a loop while the tool is on, and gives it what makes a step."""


def measured(tool: str, steps_per_s: int, seconds: float) -> dict[str, Any]:
    """What the threads of a tool took: `cpu_ns` in `wall_ns`, and their ids."""
    found: dict[str, Any] = {}

    def loop(step: Step) -> None:
        _make_steps(step, steps_per_s, _WARM_UP_S)
        os.access(WINDOW_BEGINS, os.F_OK)
        before_ns, begin_ns = _cpu_ns(), time.monotonic_ns()
        _make_steps(step, steps_per_s, seconds)
        after_ns, end_ns = _cpu_ns(), time.monotonic_ns()
        os.access(WINDOW_ENDS, os.F_OK)
        used_ns = sum(cpu_ns - before_ns.get(thread, 0) for thread, cpu_ns in after_ns.items())
        found.update(cpu_ns=used_ns, wall_ns=end_ns - begin_ns, threads=sorted(after_ns))

    RUN_WITH[tool](loop)
    return found


def _make_steps(step: Step, steps_per_s: int, seconds: float) -> None:
    begin = time.monotonic()
    for number in range(round(steps_per_s * seconds)):
        step()
        time.sleep(max(begin + (number + 1) / steps_per_s - time.monotonic(), 0))
    time.sleep(max(begin + seconds - time.monotonic(), 0))


def _cpu_ns() -> dict[int, int]:
    """Of each thread but the loop's, by its id."""
    found = {}
    for thread in {int(name) for name in os.listdir("/proc/self/task")} - {os.getpid()}:
        try:
            # The id of its clock, as Linux makes it and pthread_getcpuclockid gives it.
            found[thread] = time.clock_gettime_ns(~thread << 3 | 6)
        except OSError:  # it has just ended
            continue
    return found


def main() -> None:
    tool, steps_per_s, seconds, results = sys.argv[1:]
    found = measured(tool, int(steps_per_s), float(seconds))
    Path(results).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
