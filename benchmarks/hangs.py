# SPDX-License-Identifier: Apache-2.0
"""What `why` says of real jobs that hang, die or only take long, of which the truth is known.

`python -m benchmarks.hangs [--only CASE...] [--beside 2]`

Each case is a job of two or three ranks with gloo on this machine, under torchrun and
`pyinstrument-gpu run --watchdog 10`. `why` is asked while the job hangs, or when it has ended. The
table has the case, the truth, what was said, and whether that is right.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
AT = 30
"""The step in which it happens."""
WATCHDOG_S = 10
_PATIENCE_S = 300
_PROGRAM = "--program"


@dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
        truth: what happens in it.
        outcomes: of `why --json`, those that are right.
        named: the rank that may be named, or those that may be suspected; none for nobody.
        after_s: so long after it has happened `why` is asked; None: when the job has ended.
        ranks: how many there are.
        is_killed: whether all are killed before `why` is asked.
        evidence: what has to be said beside the verdict.
        absent: the rank whose file is taken away before that.
        timeout_s: after which operations give up.
    """

    truth: str
    outcomes: Collection[str]
    named: Collection[int] = ()
    after_s: float | None = 20
    ranks: int = 2
    is_killed: bool = False
    evidence: str = ""
    absent: int | None = None
    timeout_s: int = 1800


CASES = {
    "before init": Case("rank 1 never calls init_process_group", ["held up"], [1], 45),
    "after DDP": Case("rank 1 hangs after DDP was built", ["held up"], [1], 45),
    "before init, killed": Case(
        "rank 1 never calls init_process_group; all are killed",
        ["held up"],
        [1],
        45,
        is_killed=True,
    ),
    "absent": Case("rank 2 never comes, and has no file", ["absent"], [2], 45, 3, absent=2),
    "absent, killed": Case(
        "the same; all are killed", ["absent"], [2], 45, 3, is_killed=True, absent=2
    ),
    "uneven data": Case("rank 1 has fewer batches", ["finished early"], [1], None),
    "uneven data, 3": Case("rank 1 has fewer batches", ["finished early"], [1], None, 3),
    "uneven data, barrier": Case(
        "rank 1 has fewer batches, and waits in a barrier", ["mismatch"], [0]
    ),
    "last one": Case("rank 1 hangs when the others have finished", ["held up"], [1], 20, 3),
    "timeout": Case(
        "rank 1 hangs in a lock; the others give up after 20 s",
        ["held up"],
        [1],
        None,
        timeout_s=20,
    ),
    "timeout, 3": Case(
        "rank 1 hangs in a lock; the others give up after 20 s",
        ["held up"],
        [1],
        None,
        3,
        timeout_s=20,
    ),
    "timeout, evaluation": Case(
        "rank 0 evaluates for 40 s; the others give up after 20 s",
        ["held up"],
        [0],
        None,
        3,
        timeout_s=20,
    ),
    "slow first step": Case("the first step takes 10.4 s; rank 1 hangs", ["held up"], [1]),
    "forward": Case("rank 1 hangs in forward", ["held up"], [1]),
    "forward, busy": Case("rank 1 loops in forward", ["held up"], [1]),
    "lock": Case("rank 1 waits for a lock that it holds", ["held up"], [1]),
    "SIGSTOP": Case("rank 1 is stopped by a signal", ["stopped first"], [1]),
    "GIL": Case("a C function of rank 1 keeps the GIL", ["held up"], [1], 30),
    "loader": Case("rank 1 waits for a batch", ["held up"], [1]),
    "save": Case("rank 0 hangs in torch.save, the others in a barrier", ["held up"], [0], 20, 3),
    "recv": Case("ranks 0 and 1 receive from each other", ["deadlock"], [0, 1], 20, 3),
    "recv chain": Case("rank 1 receives from rank 0, which hangs", ["held up"], [0]),
    "skipped": Case("rank 1 leaves out an all-reduce; next is a barrier", ["mismatch"], (), 20, 3),
    "skipped, crash": Case(
        "rank 1 leaves out an all-reduce of 16 bytes, so gloo aborts rank 0 at once",
        ["stopped first", "likely", "unknown"],
        [0],
        None,
        evidence="gloo's abort where ranks ask for different operations",
    ),
    "evaluation": Case("all evaluate for 40 s", ["running"], (), 25),
    "evaluation, rank 0": Case("rank 0 evaluates for 40 s", ["held up", "running"], [0], 25),
    "quiet evaluation": Case("40 s in functions without phases or CPU time", ["running"], (), 25),
    "busy evaluation": Case("40 s in one loop without phases", ["running"], (), 25),
    "slow start": Case("20 s before init_process_group", ["running"], (), 15),
    "SIGKILL": Case("rank 1 is killed by SIGKILL", ["stopped first", "likely"], [1], None),
    "SIGTERM": Case("rank 1 is ended by SIGTERM", ["stopped first", "likely"], [1], None),
    "SIGSEGV": Case("rank 1 crashes in C", ["stopped first", "likely"], [1], None),
    "SIGABRT": Case("rank 1 aborts", ["stopped first", "likely"], [1], None),
    "_exit": Case("rank 1 calls os._exit(1)", ["stopped first", "likely"], [1], None),
    "exit": Case("rank 1 calls sys.exit(3)", ["stopped first"], [1], None),
    "raise": Case("rank 1 raises a ValueError", ["stopped first"], [1], None),
    "raise, before init": Case("rank 1 raises before the ranks meet", ["stopped first"], [1], None),
}


def wait_forever() -> None:
    threading.Event().wait()


def loop_forever() -> None:
    while True:
        pass


def wait_for_own_lock() -> None:
    lock = threading.Lock()
    with lock, lock:
        pass


def raise_error() -> None:
    raise ValueError("bad batch")


AT_RANK_1: dict[str, Callable[[], object]] = {
    "slow first step": wait_forever,
    "forward": wait_forever,
    "forward, busy": loop_forever,
    "lock": wait_for_own_lock,
    "timeout": wait_for_own_lock,
    "timeout, 3": wait_for_own_lock,
    "GIL": lambda: ctypes.PyDLL(None).sleep(1000),
    "SIGSTOP": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "SIGSEGV": lambda: ctypes.string_at(0),
    "SIGABRT": os.abort,
    "_exit": lambda: os._exit(1),
    "exit": lambda: sys.exit(3),
    "raise": raise_error,
}
"""What rank 1 does in its forward pass."""

TOGETHER = {
    "two jobs": ("two jobs at one time, which torchrun tells apart", ["lock", "recv chain"]),
    "two jobs, no launcher": ("two jobs of one command, which nothing tells apart", ["lock"] * 2),
}
"""Jobs in one folder: of all files `why` has to say that they are of several, and of each its own.
"""


class NeverWritten:
    def write(self, data: bytes) -> None:
        wait_forever()

    def flush(self) -> None:
        pass


def idle(times: int) -> None:
    """Alternately in two functions, as a program that waits for a disk."""
    for i in range(times):
        rest() if i % 2 else time.sleep(0.5)


def rest() -> None:
    time.sleep(0.5)


def program(case: str, reached: Path) -> None:
    """What each rank runs."""
    import datetime

    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])

    class Model(torch.nn.Sequential):
        step = -1

        def forward(self, x: Any) -> Any:
            if self.training and self.step == AT and rank == 1 and case in AT_RANK_1:
                reached.touch()
                AT_RANK_1[case]()
            output: Any = super().forward(x)  # type: ignore[no-untyped-call]
            return output

    def batches() -> Any:
        for step in range(10_000):
            if step == AT and rank == 1 and case == "loader":
                reached.touch()
                wait_forever()
            yield torch.randn(16, 64)

    never_comes = (rank == 2 and case.startswith("absent")) or (
        rank == 1 and case.startswith("before init")
    )
    if never_comes or (rank == 1 and case in ("raise, before init", "slow start")):
        reached.touch()
        time.sleep(20 if case == "slow start" else 0)
        if case == "raise, before init":
            raise_error()
        if never_comes:
            wait_forever()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=CASES[case].timeout_s))
    net = Model(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
    model = torch.nn.parallel.DistributedDataParallel(net)
    if rank == 1 and case == "after DDP":
        reached.touch()
        wait_forever()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def evaluate() -> None:
        model.eval()
        until_s = time.monotonic() + 40
        with torch.no_grad():
            while time.monotonic() < until_s:
                net(torch.randn(16, 64))
                time.sleep(0.02)
        model.train()

    def at_step() -> None:
        if case not in AT_RANK_1 and case != "loader":
            reached.touch()
        values = torch.ones(4)
        if case.startswith("skipped") and rank != 1:
            dist.all_reduce(values)
        if case == "skipped, crash":
            return
        if case == "save":
            if rank == 0:
                never_written: Any = NeverWritten()
                torch.save(model.state_dict(), never_written)
            dist.barrier()
        if case == "recv":
            if rank < 2:
                dist.recv(values, 1 - rank)
            dist.barrier()
        if case == "recv chain":
            wait_forever() if rank == 0 else dist.recv(values, 0)
        is_by_rank_0 = case in ("evaluation, rank 0", "timeout, evaluation")
        if case == "evaluation" or (is_by_rank_0 and rank == 0):
            evaluate()
        if case == "quiet evaluation":
            idle(80)
        if case == "busy evaluation":
            until_s = time.monotonic() + 40
            while time.monotonic() < until_s:
                pass
        dist.barrier()

    for step, batch in enumerate(batches()):
        net.step = step
        if case.startswith("uneven data") and rank == 1 and step == AT:
            break
        if case == "last one" and step == AT + 10:
            break
        if step == 0 and case == "slow first step":
            time.sleep(10.4)
        goes_on = case in (*AT_RANK_1, "loader", "last one") or case.startswith("uneven data")
        if step == AT and not goes_on:
            at_step()
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.01)
    if case == "uneven data, barrier":
        reached.touch()
        dist.barrier()
    if case == "last one" and rank == 1:
        reached.touch()
        wait_forever()


def launched(name: str, folder: Path, job: str) -> subprocess.Popen[bytes]:
    """A job under torchrun, which writes into that folder."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(CASES[name].ranks), "-m", "pyinstrument_gpu", "run"]
    return _started([*command, *_run_of(name, folder, job)], folder)


def by_hand(name: str, folder: Path, job: str) -> list[subprocess.Popen[bytes]]:
    """A job of two ranks that no launcher has started: each file has a name of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "pyinstrument_gpu", "run"]
    return [
        _started([*command, *_run_of(name, folder, f"{job}{rank}")], folder, RANK=rank, **address)
        for rank in "01"
    ]


def _run_of(name: str, folder: Path, job: str) -> list[str]:
    options = ["--no-report", "--watchdog", str(WATCHDOG_S), "-o", f"{folder}/{job}.gpurun"]
    return [*options, __file__, _PROGRAM, name, str(folder / "reached")]


def _started(command: list[str], folder: Path, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env={**ENVIRONMENT, **variables},
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_until_reached(folder: Path, after_s: float) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while not (folder / "reached").exists() and time.monotonic() < until_s:
        time.sleep(0.1)
    time.sleep(after_s)


def why(*paths: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pyinstrument_gpu", "why", "--json", *map(str, paths)]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, check=False, text=True)


def said(name: str) -> tuple[dict[str, Any], float]:
    """What `why` says of one job, and how long after it happened it was asked."""
    case = CASES[name]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as at:
        folder = Path(at)
        job = launched(name, folder, "job")
        try:
            if case.after_s is None:
                job.wait(_PATIENCE_S)
            else:
                wait_until_reached(folder, case.after_s)
            if case.is_killed:
                end_session(job)
            for file in folder.glob(f"*rank{case.absent}.gpurun"):
                file.unlink()
            done = why(folder)
        finally:
            end_session(job)
    document: dict[str, Any] = json.loads(done.stdout)
    return document, case.after_s or 0.0


def said_of_jobs(name: str) -> tuple[str, bool]:
    """What `why` says of several jobs in one folder, and whether that is right."""
    _, cases = TOGETHER[name]
    names = [f"job_{letter}" for letter in "abc"[: len(cases)]]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as at:
        folder = Path(at)
        jobs: list[subprocess.Popen[bytes]] = []
        try:
            for case, job in zip(cases, names, strict=True):
                if "no launcher" in name:
                    jobs += by_hand(case, folder, job)
                else:
                    jobs.append(launched(case, folder, job))
            wait_until_reached(folder, 30)
            of_all = why(folder)
            of_each = [why(*folder.glob(f"{job}*.gpurun")) for job in names]
        finally:
            for one in jobs:
                end_session(one)
    refusal = of_all.stderr.replace(f"{folder}/", "")
    found = [json.loads(one.stdout) for one in of_each]
    right = of_all.returncode != 0 and all(job in refusal for job in names)
    right &= all(is_right(CASES[case], one) for case, one in zip(cases, found, strict=True))
    verdicts = [f"{job}: {one['verdict']}" for job, one in zip(names, found, strict=True)]
    return " ".join([*refusal.split(), *verdicts]), right


def end_session(job: subprocess.Popen[bytes]) -> None:
    """End torchrun and its ranks, each of which is the first of a session of its own."""
    if job.poll() is not None:
        return
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    ranks = children.read_text().split() if children.exists() else []
    for pid in [*map(int, ranks), job.pid]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait()


def is_right(case: Case, found: dict[str, Any]) -> bool:
    outcome = "likely" if found.get("likely_rank") is not None else found["outcome"]
    rank = found.get("likely_rank") if outcome == "likely" else found.get("rank")
    named = {rank} if rank is not None else set(found.get("suspects", ()))
    if case.evidence not in " ".join(found.get("evidence", ())):
        return False
    if outcome == "unknown":
        return "unknown" in case.outcomes and named >= set(case.named)
    if outcome == "running":
        return "running" in case.outcomes and not named
    return outcome in case.outcomes and named == set(case.named)


def row(name: str) -> tuple[str, bool]:
    if name in TOGETHER:
        text, right = said_of_jobs(name)
        return f"| {name} | {TOGETHER[name][0]} | {text} | {'yes' if right else 'NO'} |", right
    case = CASES[name]
    found, asked_s = said(name)
    right = is_right(case, found)
    when = f", after {asked_s:.0f} s" if asked_s else ""
    return (
        f"| {name} | {case.truth}{when} | {found['verdict']} | {'yes' if right else 'NO'} |",
        right,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", "--only", action="append", choices=[*CASES, *TOGETHER])
    parser.add_argument("--beside", type=int, default=1, help="so many jobs at a time")
    arguments = parser.parse_args()
    names = arguments.case or [*CASES, *TOGETHER]
    print("| case | truth | said | right |\n|---|---|---|---|", flush=True)
    right = 0
    with ThreadPoolExecutor(arguments.beside) as pool:
        for text, is_one_right in pool.map(row, names):
            print(text, flush=True)
            right += is_one_right
    print(f"\n{right} of {len(names)} right; {os.cpu_count()} cores, {platform.machine()}")


if __name__ == "__main__":
    if sys.argv[1:2] == [_PROGRAM]:
        program(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
