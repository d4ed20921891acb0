# SPDX-License-Identifier: Apache-2.0
"""What the edits save: each case is recorded without and with its edit, in random order.

    python -m examples.cases.measure -o benchmarks/results/DATE-cases.json

The runs without the edit predict what it will save, and `pyinstrument_gpu.analysis.compare` tells
what came of it. `python -m examples.cases.page` then writes the tables of README.md beside it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from time import monotonic
from typing import Any

from benchmarks.machine import describe_machine
from examples.cases.case import CASES, SIDES, Case
from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.gate.gate import next_runs
from pyinstrument_gpu.report.comparison import comparison_facts

ROOT = Path(__file__).parents[2]
_FINAL_LOSS = "final loss "
_OF_COMPARISON = ("unit", "steps", "elapsed", "inside", "uneven", "without_uneven")


def record(case: Case, side: str, file: Path, seed: int, steps: int | None) -> tuple[Run, float]:
    """Record one script, and return the run and the script's last loss.

    Raises:
        RuntimeError: the script failed.
    """
    program = ["-m", case.module(side), "--seed", str(seed)]
    if steps is not None:
        program += ["--steps", str(steps)]
    done = subprocess.run(
        [sys.executable, "-m", "pyinstrument_gpu", "run", "-o", str(file), *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    losses = [line for line in done.stdout.splitlines() if line.startswith(_FINAL_LOSS)]
    if done.returncode or not losses:
        raise RuntimeError(
            f"{case.module(side)} ended with exit code {done.returncode}\n{done.stderr[-2000:]}"
        )
    return Run.load(file), float(losses[-1].removeprefix(_FINAL_LOSS))


def measure(case: Case, pairs: int, steps: int | None) -> dict[str, Any]:
    """The predictions and the comparison of a case, as values for JSON."""
    runs: dict[str, list[Run]] = {side: [] for side in SIDES}
    losses: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        for side in (SIDES[number] for number in next_runs([], pairs, SystemRandom())):
            seed = len(runs[side])
            print(f"{case.name}: {side}, {seed + 1} of {pairs}", file=sys.stderr, flush=True)
            run, loss = record(case, side, Path(folder, f"{side}{seed}.gpurun"), seed, steps)
            runs[side].append(run)
            losses[side].append(loss)
    facts = comparison_facts(compare(runs["before"], runs["after"]))
    return {
        "name": case.name,
        "gpus": runs["before"][0].environment.get("gpus") or [],
        "final_losses": losses,
        "predictions": [asdict(case.predict(run)) for run in runs["before"]],
        "comparison": {name: facts[name] for name in _OF_COMPARISON},
        "warnings": facts["warnings"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="examples.cases.measure", description=__doc__)
    parser.add_argument(
        "--case",
        dest="cases",
        action="append",
        choices=[case.name for case in CASES],
        help="only this one, or several; by default all",
    )
    parser.add_argument("--pairs", type=int, default=5, help="of runs, per case (%(default)s)")
    parser.add_argument("--steps", type=int, help="of each run; by default what its script says")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help="JSON")
    options = parser.parse_args(arguments)
    begin = monotonic()
    cases: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    results = {"machine": describe_machine(), "device": "", "pairs": options.pairs, "seconds": 0.0}
    for case in CASES:
        if options.cases and case.name not in options.cases:
            continue
        try:
            cases.append(measure(case, options.pairs, options.steps))
        except RuntimeError as error:
            print(error, file=sys.stderr)
            failed[case.name] = str(error).splitlines()[0]
        # After each, so that one that is stopped keeps what it has.
        gpus = {gpu for found in cases for gpu in found["gpus"]}
        results["device"] = ", ".join(sorted(gpus)) or "CPU"
        results["seconds"] = round(monotonic() - begin, 1)
        facts = results | {"cases": cases, "failed": failed}
        options.output.write_text(json.dumps(facts, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
