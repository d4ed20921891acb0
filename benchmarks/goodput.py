# SPDX-License-Identifier: Apache-2.0
"""Whether the division of a job's wall time is right, for jobs that write the truth themselves; and
whether the advised interval between checkpoints is the best.

`python -m benchmarks.goodput [--jobs 100] [--seed 1] [--folder RUNS] [--output FILE]`

Each job (benchmarks/goodput_job.py) has 1 to 3 ranks, in each attempt as many as it happens. It is
killed at random by SIGKILL, all ranks at once or one before the others, some after they hang, and
started again until it is through. A third of the jobs have a run id of torchrun, a third one of
Slurm. Two truths are made from what the ranks wrote down, moment by moment and without the code
that is judged: of all that happened, and of what happened until the last heartbeat or step that is
known of each rank: of one that is killed that may be up to 0.1 s before. Of steps behind the last
heartbeat it is not known who waited; there, and where ranks have fewer others in common than a
judgement needs, what they wait for each other is counted as the step that it is a part of.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pyinstrument_gpu.core.condition import ProcessState
from pyinstrument_gpu.core.file.shared_page import last_steps
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.goodput.advice import best_interval_ns
from pyinstrument_gpu.goodput.life import job_life
from pyinstrument_gpu.goodput.report import GoodputDocument, goodput_document
from pyinstrument_gpu.goodput.run_times import run_times
from pyinstrument_gpu.job.condition import ProcessObservation
from pyinstrument_gpu.job.own_work import MIN_STEPS

ROOT = Path(__file__).parents[1]
PROGRAM = str(Path(__file__).with_name("goodput_job.py"))
ORDER = (
    *("hung", "startup", "checkpoint", "evaluation", "stragglers"),
    *("productive", "recomputed", "outside", "dead"),
)
"""Whose a moment is: the first of these that is true of it."""
GONE = ProcessObservation(ProcessState.GONE)
_MS = 1_000_000
_BEGIN_NS = 20 * _MS
"""The kernel tells when a process began to 10 ms, and on a busy machine it takes as long to start
one."""


def run_job(seed: int, folder: Path) -> None:
    """Run one job to its end. What is true of its attempts stays in its folder."""
    rng = random.Random(seed)
    plan = {
        "steps": rng.randint(60, 160),
        "step_s": rng.uniform(0.003, 0.008),
        "checkpoint_every": rng.randint(10, 25),
        "checkpoint_s": rng.uniform(0.01, 0.05),
        "evaluate_every": rng.randint(25, 50),
        "evaluate_s": rng.uniform(0.02, 0.06),
        "slow_rank": rng.choice([-1, 0, 1]),
        "slow_s": rng.uniform(0.002, 0.006),
        "load_s": rng.uniform(0, 0.2),
    }
    failures = rng.randint(0, 3)
    for attempt in range(failures + 1):
        is_last = attempt == failures
        hangs = not is_last and rng.random() < 0.3
        plan |= {
            "seed": rng.getrandbits(30),
            "hang_at": rng.randint(15, 25) if hangs else -1,
            "hang_rank": rng.randint(0, 2),
        }
        wait = rng.uniform(4.0, 5.0) if hangs else rng.uniform(0.1, 1.5)
        ended = _run_attempt(rng, seed, attempt, plan, folder, None if is_last else wait)
        if ended:
            break
        time.sleep(rng.uniform(0.05, 0.5))


def _run_attempt(
    rng: random.Random,
    seed: int,
    attempt: int,
    plan: dict[str, Any],
    folder: Path,
    wait_s: float | None,
) -> bool:
    """Run an attempt, until it is killed so long after it has hung, or else after its first step
    has begun; one of eight so long after its start. Returns whether it came to its end."""
    world_size = rng.randint(1, 3)
    pairs = [socket.socketpair() for _ in range(world_size - 1)]
    began_ns = time.time_ns()
    processes = []
    for rank in range(world_size):
        peers = [one.fileno() for one, _ in pairs] if rank == 0 else [pairs[rank - 1][1].fileno()]
        identity = {
            0: {"TORCHELASTIC_RUN_ID": f"job-{seed}", "TORCHELASTIC_RESTART_COUNT": str(attempt)},
            1: {"SLURM_JOB_ID": str(1000 + seed), "SLURM_RESTART_COUNT": str(attempt)},
        }.get(seed % 3, {})
        name = "job.gpurun" if identity else f"job-{attempt}.gpurun"
        environment = {
            **os.environ,
            **identity,
            "PYTHONPATH": str(ROOT),
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_RANK": str(rank),
            "PLAN": json.dumps(plan),
            "TRUTH": f"truth-{attempt}-{rank}.jsonl",
            "PEERS": " ".join(map(str, peers)),
            "RUN": name,
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, PROGRAM],
                cwd=folder,
                env=environment,
                pass_fds=peers,
                stderr=subprocess.DEVNULL,
            )
        )
    for ends in pairs:
        for end in ends:
            end.close()
    killed = []
    awaited = "hang" if plan["hang_at"] >= 0 else "" if rng.random() < 1 / 8 else "begin"
    try:
        if wait_s is not None:
            _wait_for(awaited, folder, attempt, processes)
        processes[0].wait(wait_s)
    except subprocess.TimeoutExpired:
        rng.shuffle(processes)
        for number, process in enumerate(processes):
            if number == 1 and rng.random() < 0.5:
                time.sleep(0.15)
            process.send_signal(signal.SIGKILL)
            killed.append(time.time_ns())
    for process in processes:
        process.wait()
    truth = {"began_ns": began_ns, "killed_ns": max(killed, default=None), "ranks": world_size}
    (folder / f"truth-{attempt}.json").write_text(json.dumps(truth))
    return not killed


def _wait_for(
    what: str, folder: Path, attempt: int, processes: Sequence[subprocess.Popen[bytes]]
) -> None:
    """Wait until a rank has written that down, or the first one has ended."""
    while what and processes[0].poll() is None:
        truths = folder.glob(f"truth-{attempt}-*.jsonl")
        if any(f'["{what}"' in path.read_text() for path in truths):
            return
        time.sleep(0.02)


@dataclass
class RankTruth:
    """What a rank has written down, until some moment."""

    first_ns: int
    last_ns: int
    steps: dict[int, tuple[int, int, int, int]]
    begun: dict[int, int]
    intervals: list[tuple[str, int, int]]
    has_hung: bool


def _rank_truth(path: Path, until_ns: int) -> RankTruth:
    found = RankTruth(until_ns, 0, {}, {}, [], False)
    begun: dict[str, int] = {}
    lines = path.read_text().splitlines() if path.exists() else []
    for line in lines:
        what, *values = json.loads(line)
        if values[-1] > until_ns:
            continue
        found.last_ns = max(found.last_ns, values[-1])
        if what == "begin":
            found.begun[values[0]] = values[1]
            found.first_ns = min(found.first_ns, values[1])
        elif what == "step":
            found.steps[values[0]] = (values[1], values[2], values[3], values[4])
        elif what == "hang":
            found.has_hung = True
        elif what == "begins":
            begun[values[0]] = values[1]
        elif what != "arrived":
            found.intervals.append((what, values[0], values[1]))
            del begun[what]
    found.intervals += [(what, since_ns, until_ns) for what, since_ns in begun.items()]
    return found


def truth_of(folder: Path, is_all: bool) -> dict[str, float]:
    """The buckets in ns, and the counts of steps."""
    claims: list[tuple[str, int, int]] = []
    done: set[int] = set()
    again = 0
    begin_ns = end_ns = 0
    for attempt, path in enumerate(sorted(folder.glob("truth-?.json"))):
        of = json.loads(path.read_text())
        heartbeats_ns, known_ns, killed_ns = _ends_ns(folder, attempt, of)
        ends_ns = killed_ns if is_all else known_ns
        waiting, ranks = (
            [
                _rank_truth(folder / f"truth-{attempt}-{rank}.jsonl", until_ns)
                for rank, until_ns in until.items()
            ]
            for until in (heartbeats_ns, ends_ns)
        )
        if not ends_ns:
            continue
        begin_ns, end_ns = begin_ns or of["began_ns"], max(ends_ns.values())
        claims.append(("outside", of["began_ns"], end_ns))
        claims.append(("startup", of["began_ns"], max(one.first_ns for one in ranks)))
        if any(one.has_hung for one in ranks):
            claims.append(("hung", max(one.last_ns for one in ranks), end_ns))
        own_ns = _own_ns(ranks if is_all else waiting)
        of_attempt: set[int] = set()
        for number in sorted({number for one in ranks for number in one.begun}):
            since_ns = min(one.begun[number] for one in ranks if number in one.begun)
            through = [one.steps[number][3] for one in ranks if number in one.steps]
            # A step that no rank has done was cut off.
            until_ns = max(through) if through else end_ns
            is_again = number in done or not through
            claims.append(("recomputed" if is_again else "productive", since_ns, until_ns))
            if through:
                of_attempt.add(number)
            if number in own_ns:
                # When in the step it was is arbitrary, but not in what goes on as it begins.
                beside = (one for rank in ranks for one in rank.intervals)
                free_ns = max(
                    (end for _, begin, end in beside if begin <= since_ns < end), default=since_ns
                )
                claims.append(("stragglers", free_ns, min(until_ns, free_ns + own_ns[number])))
        again += len(of_attempt & done)
        done |= of_attempt
        claims += [one for rank in ranks for one in rank.intervals]
    return {
        **_sums(claims, begin_ns, end_ns),
        "productive_steps": len(done),
        "recomputed_steps": again,
    }


def _ends_ns(folder: Path, attempt: int, of: dict[str, Any]) -> tuple[dict[int, int], ...]:
    """By rank the last heartbeat, the last that is known, and the end."""
    heartbeats_ns, known_ns, ends_ns = {}, {}, {}
    for rank in range(of["ranks"]):
        path = _file(folder, attempt, rank, of["ranks"])
        if path is None:
            continue  # it was killed before it began to record
        run = Run.load(path)
        left = last_steps(path)
        heartbeats_ns[rank] = (run.began_realtime_ns or 0) + run.duration_ns
        known_ns[rank] = run_times(run, GONE, left).end_ns
        ends_ns[rank] = known_ns[rank] if run.complete else of["killed_ns"]
    return heartbeats_ns, known_ns, ends_ns


def _file(folder: Path, attempt: int, rank: int, ranks: int) -> Path | None:
    of_rank = f".rank{rank}" if ranks > 1 else ""
    again = ("", f".restart{attempt}", f".requeue{attempt}")
    names = [f"job-{attempt}{of_rank}.gpurun"]
    names += [f"job{word}{of_rank}.gpurun" for word in (again if attempt else ("",))]
    names = [name for name in names if not attempt or str(attempt) in name.replace(of_rank, "")]
    return next((folder / name for name in names if (folder / name).exists()), None)


def _own_ns(ranks: Sequence[RankTruth]) -> dict[int, int]:
    """By step what the last rank works longer than the median one (of two, than the other)."""
    found: dict[int, int] = {}
    if len(ranks) < 2:
        return found
    common = sorted(set.intersection(*(set(one.steps) for one in ranks)))
    if len(common) <= MIN_STEPS:  # the report says of so few that it is not known
        return found
    for before, number in pairwise(common):
        works = []
        for one in ranks:
            since_ns, until_ns = one.steps[before][2], one.steps[number][1]
            beside = sum(
                end - begin
                for _, begin, end in one.intervals
                if since_ns <= begin and end <= until_ns
            )
            works.append(until_ns - since_ns - beside)
        usual = min(works) if len(works) == 2 else statistics.median(works)
        found[number] = int(max(works) - usual)
    return found


def _sums(claims: Sequence[tuple[str, int, int]], begin_ns: int, end_ns: int) -> dict[str, float]:
    """The time of each bucket, moment by moment."""
    sums = dict.fromkeys(ORDER, 0.0)
    changes: list[tuple[int, int, int]] = []
    for name, since_ns, until_ns in claims:
        if since_ns < until_ns:
            changes += [(since_ns, ORDER.index(name), 1), (until_ns, ORDER.index(name), -1)]
    open_now = [0] * len(ORDER)
    now_ns = begin_ns
    for at_ns, which, change in sorted(changes):
        at_ns = min(max(at_ns, begin_ns), end_ns)
        owner = next((place for place, count in enumerate(open_now) if count), ORDER.index("dead"))
        sums[ORDER[owner]] += at_ns - now_ns
        now_ns = at_ns
        open_now[which] += change
    return sums


def judged(document: GoodputDocument, truth: dict[str, float], is_all: bool) -> dict[str, Any]:
    """What the division of a job differs by from the truth."""
    found = {one.bucket: one.time_ns or 0 for one in document.buckets}
    apart = {name: found[name] - truth[name] for name in ORDER}
    within = {name: abs(ns) <= max(0.02 * truth[name], 50 * _MS) for name, ns in apart.items()}
    wall_ns = sum(truth[name] for name in ORDER)
    return {
        "wall_s": wall_ns / 1e9,
        "sums": sum(found.values()) == document.wall_ns
        and abs(document.wall_ns - wall_ns) <= max(0.001 * wall_ns, _BEGIN_NS),
        "wall_apart_ms": (document.wall_ns - wall_ns) / 1e6,
        "productive": document.steps.productive
        - (0 if is_all else document.steps.unseen)
        - int(truth["productive_steps"]),
        "recomputed": document.steps.recomputed - int(truth["recomputed_steps"]),
        "apart_ms": {name: round(ns / 1e6, 3) for name, ns in apart.items()},
        "within": [name for name, is_in in within.items() if not is_in],
    }


def best_by_simulation(cost: float, lives: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """The interval with which a job that fails after these times, in means, gets most work done.
    Each is a life from a checkpoint to a failure, in which each interval counts once its checkpoint
    is written. By golden section on the logarithm."""

    def done(logarithm: float) -> float:
        interval = math.exp(logarithm)
        return interval * float(np.floor(lives / (interval + cost)).mean())

    ratio = (math.sqrt(5) - 1) / 2
    low, high = math.log(cost / 10), math.log(3)
    # The work that a sample of lives gets done has steps: a parabola over many of them has none.
    for _ in range(12):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if done(left) > done(right):
            high = right
        else:
            low = left
    middle = (low + high) / 2
    at = np.linspace(middle - 0.3, middle + 0.3, 121)
    second, first, _ = np.polyfit(at - middle, [done(one) for one in at], 2)
    return math.exp(middle - first / (2 * second))


def intervals() -> Iterator[tuple[float, float, float]]:
    """Costs of a checkpoint, in mean times between failures: what is advised, what is best."""
    count = 1_000_000
    chances = (np.arange(count) + 0.5) / count
    lives = np.random.default_rng(1).permutation(-np.log1p(-chances))
    for cost in (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3):
        yield cost, best_interval_ns(cost, 1.0), best_by_simulation(cost, lives)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="goodput-"))
    found: list[dict[str, Any]] = []
    for seed in range(options.seed, options.seed + options.jobs):
        of_job = folder / f"job-{seed}"
        if not (of_job / "done").exists():
            of_job.mkdir(parents=True)
            run_job(seed, of_job)
            (of_job / "done").touch()
        document = goodput_document(
            job_life(sorted(of_job.glob("*.gpurun")), lambda run, path: GONE)
        )
        both = [judged(document, truth_of(of_job, flag), flag) for flag in (False, True)]
        found.append(
            {
                "seed": seed,
                "attempts": len(document.attempts),
                "known": both[0],
                "all": both[1],
            }
        )
        print(json.dumps(found[-1]), flush=True)
    for which in ("known", "all"):
        of = [one[which] for one in found]
        print(
            f"{which}: of {len(of)} jobs, sums within 0.1 %: {sum(one['sums'] for one in of)}, "
            f"productive steps exact: {sum(not one['productive'] for one in of)}, "
            f"recomputed steps exact: {sum(not one['recomputed'] for one in of)}, "
            f"all buckets within 2 % or 50 ms: {sum(not one['within'] for one in of)}"
        )
    advised = list(intervals())
    for cost, told, best in advised:
        print(
            f"checkpoint cost {cost:g} M: advised {told:.5f} M, best {best:.5f} M, "
            f"{told / best - 1:+.2%}"
        )
    if options.output:
        result = {"jobs": found, "intervals": advised, "load": os.getloadavg()}
        options.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
