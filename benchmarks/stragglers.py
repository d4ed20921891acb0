# SPDX-License-Identifier: Apache-2.0
"""How often the rank that is slow is named, in real jobs of which it is known.

`python -m benchmarks.stragglers [--runs 20] [--case CASE...]`

Two ranks train with gloo on this machine, under torchrun and `pyinstrument-gpu run`
(tests/helpers/slow_rank.py), and rank 1 is slower in the way of the case. What is printed are
counts: of a right rank with the phase that was named, of a wrong rank, and of nobody.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from pyinstrument_gpu.job.analysis import of

from pyinstrument_gpu.job.job import Job
from tests.helpers import slow_rank

ROOT = Path(__file__).parents[1]
CASES = {
    "balanced": "no rank is slower",
    "sleep": "200 ms in data, in each step",
    "sleep-some": "200 ms in data, in each fifth step",
    "loader": "20 ms in data, in each step",
    "slower": "30 %, two thirds of it in backward and the rest behind the optimizer's step",
    "backward": "30 % of backward",
    "late": "3 s before the ranks meet for the first time",
}
"""In which way rank 1 is slower."""
_TIMEOUT_S = 300


def outcome(case: str, steps: int, width: int) -> str:
    """What is said of one run of a case."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += ["--nproc-per-node", "2", "-m", "pyinstrument_gpu", "run", "--no-report"]
        command += [str(Path(slow_rank.__file__)), case, str(steps), str(width)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
            timeout=_TIMEOUT_S,
        )
        job = of(Job.load(folder))
    found = job.stragglers.straggler
    if case == "late" and found is None:
        late = job.late_start
        if late is None:
            return "nobody"
        right = late.rank == slow_rank.SLOW_RANK
        return "the rank, as late" if right else f"wrongly rank {late.rank}, as late"
    if found is None:
        return "nobody"
    if case in ("balanced", "late") or found.rank != slow_rank.SLOW_RANK:
        return f"wrongly rank {found.rank}"
    return "the rank, without a phase" if found.path is None else f"the rank, in {found.path}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    arguments = parser.parse_args()
    print(f"| {'case':10} | outcomes of {arguments.runs} runs |\n|---|---|", flush=True)
    for case in arguments.case or CASES:
        seen = Counter(
            outcome(case, arguments.steps, arguments.width) for _ in range(arguments.runs)
        )
        text = ", ".join(f"{what} {count}" for what, count in seen.most_common())
        print(f"| {case:10} | {text} |", flush=True)
    print(f"load average at the end: {', '.join(f'{one:.1f}' for one in os.getloadavg())}")


if __name__ == "__main__":
    main()
