# SPDX-License-Identifier: Apache-2.0
"""What is said of slow steps of which it is known what made them slow, and of steps that nothing
did.

`python -m benchmarks.slow_steps [--each N] [--causes NAME...] [--quiet STEPS] [--output FILE]`

A small model is trained on the CPU, with two workers that load its batches, and delays of known
causes are put into some of its steps (benchmarks/slow_delays.py).

Other programs on the machine delay steps as well. A delay is disturbed if the step's own thread
waited for a processor for a fifth of its time or more, unless that is its cause. Such delays count
apart, and are right if their cause is the first one told beside these waits; their size is then
between that of the delay and what is left of it without the waits. A delay that is shorter than
what a step must exceed its kind by to be slow is lost in the noise of the run, and counts for
nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import pyinstrument_gpu as pig
from benchmarks.machine import describe_machine
from benchmarks.slow_delays import LATE_BATCH, Batches, Delays
from pyinstrument_gpu import analysis, gpu_phase
from pyinstrument_gpu.analysis.step_kinds import step_kinds
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.run import Run

_EVERY = 6
_WITHIN = 0.2
_DISTURBED = 0.2
_LATE_S = 0.4
_PAIRS = (
    ("garbage_collection", "evaluation"),
    ("compilation", "evaluation"),
    ("garbage_collection", "compilation"),
)


@dataclass
class Delayed:
    """A step into which delays were put; of each how long it was, -1 where the step says that."""

    step: int
    causes: tuple[str, ...]
    sizes_ns: dict[str, int] = field(default_factory=dict)
    waited_ns: int = 0


def plan(causes: Sequence[str], each: int, pairs: int) -> list[Delayed]:
    """Which steps are delayed, and by what: in an order that changes at random."""
    wanted: list[tuple[str, ...]] = [(cause,) for cause in causes for _ in range(each)]
    known = [pair for pair in _PAIRS if set(pair) <= set(causes)]
    wanted += [pair for pair in known for _ in range(pairs)]
    random.Random(1).shuffle(wanted)
    return [Delayed(20 + _EVERY * place, one) for place, one in enumerate(wanted)]


def _processor_wait_ns() -> int:
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def train(delayed: Sequence[Delayed], steps: int) -> Run:
    """The run of so many steps, some of which are delayed."""
    torch.set_num_threads(1)
    by_step = {one.step: one for one in delayed}
    late = {one.step: _LATE_S for one in delayed if LATE_BATCH in one.causes}
    loader = DataLoader(Batches(late, steps), batch_size=None, num_workers=2, prefetch_factor=2)
    with Delays() as delays:
        os.environ["PYINSTRUMENT_GPU_PROC"] = str(delays.proc())
        optimizer = torch.optim.Adam(delays.model.parameters(), lr=1e-3)
        timed = _Timed(loader)
        with pig.record() as recording:
            for number, (inputs, targets) in enumerate(pig.gpu_steps(timed)):
                one = by_step.get(number, Delayed(number, ()))
                before_ns = _processor_wait_ns() if one.causes else 0
                if LATE_BATCH in one.causes:
                    one.sizes_ns[LATE_BATCH] = timed.last_ns
                with contextlib.ExitStack() as stack:
                    for cause in one.causes:
                        if cause in delays.around:
                            one.sizes_ns[cause] = -1
                            stack.enter_context(delays.around[cause]())
                    _step(delays, optimizer, inputs, targets)
                    for cause in one.causes:
                        if cause in delays.of_own:
                            began_ns = time.perf_counter_ns()
                            delays.of_own[cause]()
                            one.sizes_ns[cause] = time.perf_counter_ns() - began_ns
                one.waited_ns = _processor_wait_ns() - before_ns if one.causes else 0
        del os.environ["PYINSTRUMENT_GPU_PROC"]
    return recording.run


class _Timed:
    """A loader, and how long the last batch was waited for."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        self.last_ns = 0

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            began_ns = time.perf_counter_ns()
            batch = next(batches, None)
            self.last_ns = time.perf_counter_ns() - began_ns
            if batch is None:
                return
            yield batch


def _step(
    delays: Delays, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, targets: torch.Tensor
) -> None:
    with gpu_phase("forward"):
        loss = nn.functional.cross_entropy(delays.model(inputs), targets)
    with gpu_phase("backward"):
        loss.backward()
    with gpu_phase("optimizer"):
        optimizer.step()
        optimizer.zero_grad()
    with gpu_phase("buffer"):
        delays.pages.fill(1)


def least_excess_ns(run: Run) -> int:
    """What a step must take longer than its kind to be slow, at least, by the quickest of those."""
    kinds = step_kinds(run)
    slow = kinds.steps[kinds.is_slow]
    if not len(slow):
        return 0
    return int((durations_ns_of(slow) - kinds.typical_ns[kinds.is_slow]).min())


def judge(run: Run, delayed: Sequence[Delayed]) -> dict[str, Any]:
    """Of each cause how often it was told, and its size; and of pairs, whether both were."""
    found = analysis.of(run).excess
    names = [one.name for one in found.causes]
    places = {int(step): place for place, step in enumerate(found.steps["index"].tolist())}
    untouched = {one.step for one in delayed}
    steps = run.steps.closed
    usual_ns = median(
        int(step["end_ns"] - step["begin_ns"]) for step in steps if step["index"] not in untouched
    )
    noise_ns = least_excess_ns(run)
    rows: dict[str, dict[str, Any]] = {}
    for one in delayed:
        step = run.steps.by_index(one.step)
        excess_ns = max(1, (step.duration_ns or 0) - usual_ns)
        sizes_ns = {cause: excess_ns if ns < 0 else ns for cause, ns in one.sizes_ns.items()}
        whole_ns, waited_ns = sum(sizes_ns.values()), one.waited_ns
        if "processor_wait" in one.causes:
            waited_ns = 0
        is_disturbed = waited_ns > _DISTURBED * whole_ns
        name = " and ".join(one.causes) + (", disturbed" if is_disturbed else "")
        row = rows.setdefault(
            name, {**dict.fromkeys(("delays", "in noise", "right", "sized"), 0), "instead": {}}
        )
        row["delays"] += 1
        place = places.get(one.step)
        if place is None and whole_ns < noise_ns:
            row["in noise"] += 1
            continue
        parts_ns = {"unexplained": 0}
        if place is not None:
            parts_ns = dict(zip(names, found.parts_ns[:, place].tolist(), strict=True))
            parts_ns["unexplained"] = int(found.unexplained_ns[place])
        if is_disturbed:
            parts_ns.pop("processor_wait", None)
        told = sorted(parts_ns, key=lambda cause: -parts_ns[cause])[: len(one.causes)]
        is_right = place is not None and set(told) == set(one.causes)
        row["right"] += is_right
        for other in () if is_right else set(told if place is not None else ["not slow"]):
            row["instead"][other] = row["instead"].get(other, 0) + (other not in one.causes)
        if is_right:
            row["sized"] += all(
                (1 - _WITHIN) * (ns - (waited_ns if is_disturbed else 0))
                <= parts_ns[cause]
                <= (1 + _WITHIN) * ns
                for cause, ns in sizes_ns.items()
            )
            row.setdefault("ratios", []).extend(parts_ns[c] / ns for c, ns in sizes_ns.items())
    for row in rows.values():
        row["ratio"] = round(median(row.pop("ratios", [0.0])), 3)
    return rows


def quiet(steps: int) -> dict[str, Any]:
    """A run into which nothing is put: which steps are slow, and what is said of them."""
    run = train([], steps)
    found = analysis.of(run).excess
    causes: dict[str, int] = {}
    for row in found.main_cause.tolist():
        name = "unexplained" if row < 0 else found.causes[row].name
        causes[name] = causes.get(name, 0) + 1
    contention = analysis.of(run).contention
    return {
        "noise_ns": least_excess_ns(run),
        "steps": found.compared,
        "slow": len(found.steps),
        "causes": causes,
        "processor_wait_share": None if contention is None else contention.share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = [*Delays().of_own, LATE_BATCH, *Delays().around]
    parser.add_argument("--each", type=int, default=50, help="delays of each cause")
    parser.add_argument("--pairs", type=int, default=20, help="delays of each pair of causes")
    parser.add_argument("--causes", nargs="*", default=known, choices=known)
    parser.add_argument("--quiet", type=int, default=2000, help="steps without delays")
    parser.add_argument("--output", type=Path, help="where to write the results as JSON")
    arguments = parser.parse_args()
    delayed = plan(arguments.causes, arguments.each, arguments.pairs)
    run = train(delayed, delayed[-1].step + 20)
    results = {
        "machine": describe_machine(),
        "delayed": judge(run, delayed),
        "quiet": quiet(arguments.quiet) if arguments.quiet else None,
    }
    text = json.dumps(results, indent=1)
    print(text)
    if arguments.output is not None:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
