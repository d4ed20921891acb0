# SPDX-License-Identifier: Apache-2.0
"""`pyinstrument-gpu run` beside torch.profiler: host, stream and blocked time of the same steps.

The program profiles some of its steps itself while it is recorded, so both see the same ones, with
the cost of both. Compared are sums over the steps whose device times the recording has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.gpu.figure import Figure, print_figures
from benchmarks.gpu.profiler_trace import ProfiledStep, read_trace
from benchmarks.gpu.program import MODELS
from benchmarks.gpu.recorded_program import record
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import has_device_times

GOAL_PERCENT = 2


def recorded_step(run: Run, number: int) -> ProfiledStep:
    """The same of a recorded step."""
    steps = run.steps.closed
    step = steps[steps["index"] == number][0]
    timed = run.spans[(run.spans["step"] == number) & has_device_times(run.spans)]
    waits = run.syncs.events[run.syncs.events["step"] == number]
    waits = waits[waits["duration_ns"] >= 0]
    begins_ns, ends_ns = timed["device_begin_ns"], timed["device_end_ns"]
    return ProfiledStep(
        host_ns=float(step["end_ns"] - step["begin_ns"]),
        device_ns=float(ends_ns.max() - begins_ns.min()) if len(timed) else None,
        blocked_ns=float(waits["duration_ns"].sum()),
    )


def comparison(name: str, run: Run, profiled: dict[int, ProfiledStep]) -> Iterator[Figure]:
    """How far the sums are apart."""
    # In the first and the last of the steps the profiler starts and stops.
    numbers = np.intersect1d(sorted(profiled)[1:-1], run.steps.closed["index"]).tolist()
    recorded = {number: recorded_step(run, number) for number in numbers}
    on_device = [n for n in numbers if None not in (recorded[n].device_ns, profiled[n].device_ns)]
    yield Figure(f"{name}: steps that both have", len(numbers), "")
    yield Figure(f"{name}: of these with device times", len(on_device), "")
    for label, attribute, chosen in (
        ("host time", "host_ns", numbers),
        ("device time", "device_ns", on_device),
        ("blocked time", "blocked_ns", numbers),
    ):
        ours_ns = sum(getattr(recorded[number], attribute) for number in chosen)
        theirs_ns = sum(getattr(profiled[number], attribute) for number in chosen)
        if not theirs_ns:
            print(f"{name}: in no step do both have {label}", flush=True)
            continue
        yield Figure(
            f"{name}: {label}, how far the sums are apart",
            100 * abs(ours_ns / theirs_ns - 1),
            "%",
            goal=GOAL_PERCENT,
            note=(
                f"ours is {ours_ns / theirs_ns:.4f} times torch.profiler's, "
                f"{ours_ns / 1e6:.3f} of {theirs_ns / 1e6:.3f} ms"
            ),
        )


def figures(*arguments: str) -> Iterator[Figure]:
    """All that this part measures. The arguments go to the program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for model in MODELS:
            trace = folder / "trace.json"
            run = record(folder, model, "--profile", str(trace), *arguments)
            yield from comparison(model, run, read_trace(trace))


def main() -> None:
    print_figures(figures())


if __name__ == "__main__":
    main()
