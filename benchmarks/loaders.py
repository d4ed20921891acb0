# SPDX-License-Identifier: Apache-2.0
"""What is predicted of loaders with other workers, beside what they do.

`python -m benchmarks.loaders [--pipelines N] [--batches N] [--workers N...] [--output FILE]`

Each pipeline (benchmarks/loader_pipelines.py) is recorded with each number of workers, and from
each of these runs the wait for a batch is predicted with each other number. A prediction is right
if what was measured lies in its range, or within 15 % or 0.5 ms of it. What the loop can save at
most is beaten where the wait is shorter than the least that was predicted by more than that.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import pyinstrument_gpu as pig
from benchmarks.loader_pipelines import Pipeline, pipelines
from benchmarks.machine import describe_machine
from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.run import Run

_SHARE, _NS = 0.15, 500_000


@dataclass(frozen=True)
class Judged:
    """A prediction and what came of it, in ns per batch."""

    kind: str
    computes: bool
    recorded_with: int
    predicted_for: int
    is_said: bool
    wait_ns: float
    least_ns: float
    most_ns: float
    measured_ns: float
    others: float | None

    @property
    def tolerance_ns(self) -> float:
        return max(_NS, _SHARE * self.measured_ns)

    @property
    def is_right(self) -> bool:
        if self.least_ns <= self.measured_ns <= self.most_ns:
            return True
        return abs(self.measured_ns - self.wait_ns) <= self.tolerance_ns

    @property
    def is_beaten(self) -> bool:
        return self.measured_ns < self.least_ns - self.tolerance_ns


def record(pipeline: Pipeline, workers: int) -> Run:
    loader = DataLoader(
        pipeline.dataset(),
        batch_size=pipeline.batch_size,
        num_workers=workers,
    )
    with pig.record() as recording:
        for _ in pig.gpu_steps(loader):
            pipeline.use()
    return recording.run


def judge(pipeline: Pipeline, counts: list[int]) -> list[Judged]:
    runs = {workers: record(pipeline, workers) for workers in counts}
    judged = []
    for workers, run in runs.items():
        known, model = run.cpu_contention, analysis.of(run).loader_model
        for others in counts:
            if others in (workers, 0):
                continue
            found = None
            if model is not None and analysis.of(run).loader_predictions:
                found = model.predicted(others)
            judged.append(
                Judged(
                    pipeline.kind,
                    pipeline.computes,
                    workers,
                    others,
                    found is not None,
                    found.wait_ns if found else 0.0,
                    found.least_ns if found else 0.0,
                    found.most_ns if found else 0.0,
                    measured_ns(runs[others], others),
                    None if known is None else known.others,
                )
            )
    return judged


def measured_ns(run: Run, workers: int) -> float:
    """The mean wait, without the first batches, which workers make ahead."""
    found = analysis.of(run).batches
    return float((found.given_ns - found.asked_ns)[2 * workers :].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pipelines", type=int, default=50)
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2, 4])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    judged: list[Judged] = []
    for number, pipeline in enumerate(pipelines(options.pipelines, options.batches, options.seed)):
        judged += judge(pipeline, options.workers)
        print(f"{number + 1} of {options.pipelines}", end="\r", flush=True)
    by_kind: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        for kind in (one.kind, "all"):
            by_kind[kind].append(one)
        by_kind[f"{one.recorded_with} workers, predicted for {one.predicted_for}"].append(one)
    print("| pipeline | predictions | not said | right | least was beaten | median width, ms |")
    print("|---|---|---|---|---|---|")
    for kind, ones in by_kind.items():
        said = [one for one in ones if one.is_said]
        right = sum(one.is_right for one in said)
        share = f"{right} ({100 * right / len(said):.1f} %)" if said else "-"
        beaten = sum(one.is_beaten for one in said)
        widths_ns = [one.most_ns - one.least_ns for one in said] or [0.0]
        print(
            f"| {kind} | {len(ones)} | {len(ones) - len(said)} | {share} | {beaten} "
            f"| {statistics.median(widths_ns) / 1e6:.2f} |"
        )
    if options.output:
        document = {
            "machine": describe_machine(),
            "load": os.getloadavg(),
            "predictions": [asdict(one) for one in judged],
        }
        options.output.write_text(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
