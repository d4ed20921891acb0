# SPDX-License-Identifier: Apache-2.0
"""What is said of real jobs of which it is known who is slow.

`python -m benchmarks.stragglers [--only NAME...] [--folder RUNS] [--output FILE]`

The ranks of each case train with gloo on this machine (benchmarks/slow_job.py), under torchrun and
`pyinstrument-gpu run`, and some of them sleep. The table says who did, and what the job's report
says. The files of the runs stay in the folder: cases that are there are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyinstrument_gpu.errors import JobError
from pyinstrument_gpu.job.analysis import of
from pyinstrument_gpu.job.job import Job
from pyinstrument_gpu.job.report import job_document_of
from pyinstrument_gpu.parts.words import ranks_text

ROOT = Path(__file__).parents[1]
PROGRAM = str(Path(__file__).with_name("slow_job.py"))
_TIMEOUT_S = 300


@dataclass(frozen=True)
class Case:
    """A job.

    Attributes:
        name: of the case, and of its folder.
        ranks: how many there are.
        options: of benchmarks/slow_job.py.
        slow: the ranks that sleep.
        phase: in which one has to say that they do; "" none has to be said.
        costs_ms: what a step would be shorter without it.
        ranks_per_host: 0 if all are of this machine; otherwise the machines that the files say
            they ran on are changed.
        says: what has to be said of these ranks: "named", "told" (without a judgement) or "late" at
            the start.
        beside: the case whose job runs into the same folder meanwhile. A report of the folder has
            to be refused, as the files are of two jobs.
    """

    name: str
    ranks: int
    options: str
    slow: tuple[int, ...] = ()
    phase: str = ""
    costs_ms: float = 0.0
    ranks_per_host: int = 0
    says: str = "named"
    beside: str = ""

    @property
    def folder(self) -> str:
        return min(self.name, self.beside or self.name)


def straggler_cases() -> Iterator[Case]:
    for kind, ranks, slow in (
        ("ddp", 2, 1),
        ("ddp", 4, 0),
        ("fsdp", 2, 1),
        ("fsdp", 4, 2),
        ("fsdp", 8, 5),
        ("tp", 2, 1),
        ("tp", 4, 3),
        ("mesh", 4, 0),
        ("mesh", 4, 2),
        ("mesh", 8, 3),
    ):
        for phase in ("forward", "backward") if ranks == 4 else ("forward",):
            yield Case(
                f"{kind}-{ranks}-{phase}-{slow}",
                ranks,
                f"--parallel {kind} --phase {phase}",
                (slow,),
                phase,
                100.0,
            )
    for kind in ("ddp", "fsdp", "mesh"):
        options = f"--parallel {kind} --phase data --ms 30"
        yield Case(f"{kind}-4-data-1", 4, options, (1,), "data", 30.0)
    options = "--parallel fsdp --ms 200 --every 5 --steps 80"
    yield Case("fsdp-4-some-steps", 4, options, (1,), "forward", 40.0)
    for kind, ranks in (("ddp", 2), ("fsdp", 4)):
        options = f"--parallel {kind} --ms 600 --every 50 --steps 220"
        yield Case(f"{kind}-{ranks}-rare", ranks, options, (1,), "forward", 11.0, says="told")
    yield Case("ddp-2-start", 2, "--parallel ddp --phase start --ms 4000", (1,), says="late")
    # Machines and process groups. A stage of a pipeline with data parallelism is a group.
    for kind, those in (("ddp", (2, 3)), ("fsdp", (0, 1)), ("mesh", (2, 3))):
        options = f"--parallel {kind} --ms 50"
        yield Case(f"{kind}-4-host", 4, options, those, "forward", 50.0, ranks_per_host=2)
    yield Case("ddp-8-host", 8, "--parallel ddp --ms 50", (2, 3), "forward", 50.0, 2)
    yield Case("mesh-4-tp-group", 4, "--parallel mesh --ms 50", (2, 3), "forward", 50.0)
    yield Case("mesh-4-dp-group", 4, "--parallel mesh --ms 50", (1, 3), "forward", 50.0)
    yield Case("pp-dp-4-stage", 4, "--parallel pp-dp --ms 16", (2, 3), "forward", 128.0)
    # In one folder.
    options = "--parallel ddp --ms 50"
    yield Case("two-ddp-2-a", 2, options, (1,), "forward", 50.0, beside="two-ddp-2-b")
    yield Case("two-ddp-2-b", 2, "--parallel ddp", beside="two-ddp-2-a")
    # Sixteen milliseconds for each of eight micro-batches.
    for kind in ("pp-1f1b", "pp-gpipe"):
        for ranks, slow in ((2, 1), (4, 1), (4, 3)):
            options = f"--parallel {kind} --ms 16"
            yield Case(f"{kind}-{ranks}-stage-{slow}", ranks, options, (slow,), "forward", 128.0)


def healthy_cases() -> Iterator[Case]:
    shapes = (
        ("ddp", 2),
        ("ddp", 4),
        ("fsdp", 2),
        ("fsdp", 4),
        ("tp", 2),
        ("tp", 4),
        ("mesh", 4),
        ("pp-1f1b", 2),
        ("pp-gpipe", 4),
        ("pp-dp", 4),
    )
    for seed, variant in ((1, ""), (2, "--noise 0.1"), (3, "--work 2 --blocks 6")):
        for kind, ranks in shapes:
            if kind.startswith("pp"):
                variant = variant.replace("--blocks 6", "")
            options = f"--parallel {kind} --seed {seed} {variant}"
            # Of these machines none is slow either.
            yield Case(f"{kind}-{ranks}-healthy-{seed}", ranks, options, ranks_per_host=2)
    yield Case("fsdp-8-healthy", 8, "--parallel fsdp --steps 40", ranks_per_host=4)
    yield Case("mesh-8-healthy", 8, "--parallel mesh --steps 40", ranks_per_host=2)


CASES = {case.name: case for case in (*straggler_cases(), *healthy_cases())}


def run(case: Case, folder: Path) -> None:
    folder.mkdir(parents=True)
    cases = [case] if not case.beside else [case, CASES[case.beside]]
    jobs = [_started(one, folder) for one in cases]
    try:
        for job in jobs:
            if job.wait(_TIMEOUT_S):
                raise subprocess.CalledProcessError(job.returncode, job.args)
    finally:
        for job in jobs:
            job.kill()


def _started(case: Case, folder: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(case.ranks), "-m", "pyinstrument_gpu", "run"]
    command += ["--no-report", "-o", f"{_job(case)}.gpurun", PROGRAM, *case.options.split()]
    command += ["--slow", *map(str, case.slow)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (folder / f"{_job(case)}.output").open("w") as output:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)


def _job(case: Case) -> str:
    return case.name if case.beside else "job"


def refusal(case: Case, folder: Path) -> str:
    """Return what is said of the whole folder, as one line; empty if it was not refused by name."""
    names = case.name, case.beside
    try:
        Job.load(folder)
    except JobError as error:
        text = " ".join(str(error).replace(f"{folder}/", "").split())
        is_named = all(f"{name}.rank{rank}" in text for name in names for rank in range(case.ranks))
        return text.partition(" Give ")[0] if is_named else ""
    return ""


def load(case: Case, folder: Path) -> Job:
    job = Job.load(sorted(folder.glob(f"{_job(case)}.rank*.gpurun")))
    if not case.ranks_per_host:
        return job
    ranks = [
        replace(
            rank,
            environment={**rank.environment, "host": f"node{rank.rank // case.ranks_per_host}"},
        )
        for rank in job.ranks
    ]
    return replace(job, ranks=tuple(ranks))


@dataclass(frozen=True)
class Outcome:
    """What was said of a case.

    Attributes:
        truth: what is true.
        said: the same from the report.
        verdict: its sentence.
        is_right: whether the ranks are the right ones.
        phase: whether the phase is: "right", "none", "wrong"; "" if none has to be said.
        line: whether the line is in the function that sleeps, likewise.
        is_false: whether ranks are named that are not slow.
        step_ms, costs_ms: the mean step, and what the report says that it costs.
        processor_share: which share of its time a step waits for a processor.
    """

    name: str
    truth: str
    said: str
    verdict: str
    is_right: bool
    phase: str
    line: str
    is_false: bool
    step_ms: float | None
    costs_ms: float | None
    processor_share: float | None


def outcome(case: Case, job: Job) -> Outcome:
    found = of(job)
    one, how = found.stragglers.straggler, "named"
    if one is None and found.stragglers.hint is not None:
        one, how = found.stragglers.hint, "told"
    ranks: tuple[int, ...] = ()
    said = found.stragglers.pattern.value
    if one is not None:
        ranks, said = one.ranks, f"{ranks_text(one.ranks)} in {one.path}"
        said += "" if one.host is None else f", {one.host}"
        said += "" if one.group is None else f", {one.group}"
        said += " (told)" if how == "told" else ""
    late = found.late_start
    if late is not None:
        said += f"; rank {late.rank} late at the start"
    is_right, phase, line = ranks == case.slow, "", ""
    if one is not None and case.phase:
        phase = "none" if one.path is None else "right" if one.path == case.phase else "wrong"
        sleeps = "Samples.__iter__ " if case.phase == "data" else "pause "
        line = "none"
        if one.line is not None:
            said += f", {one.line}"
            line = "right" if one.line.startswith(sleeps) else "wrong"
    if case.says == "late":
        is_right = one is None and late is not None and (late.rank,) == case.slow
    if case.says == "named" and how == "told":
        is_right = False
    truth = f"{ranks_text(case.slow)} in {case.phase or 'start'}" if case.slow else "nobody"
    loss_ns, step_ns = found.stragglers.loss_ns, found.stragglers.step_ns
    return Outcome(
        name=case.name,
        truth=truth,
        said=said,
        verdict=job_document_of(job).verdict,
        is_right=is_right,
        phase=phase,
        line=line,
        is_false=not {*ranks} <= {*case.slow},
        step_ms=None if step_ns is None else step_ns / 1e6,
        costs_ms=None if loss_ns is None else loss_ns / 1e6,
        processor_share=found.stragglers.processor_share,
    )


def row(case: Case, one: Outcome) -> str:
    costs = "-" if one.costs_ms is None else f"{one.costs_ms:.0f}"
    step = "-" if one.step_ms is None else f"{one.step_ms:.0f}"
    waits = "-" if one.processor_share is None else f"{one.processor_share:.0%}"
    right = "**false**" if one.is_false else "right" if one.is_right else "missed"
    if one.is_right and one.phase in ("none", "wrong"):
        right += ", no phase" if one.phase == "none" else ", **wrong phase**"
    if one.line in ("none", "wrong"):
        right += ", no line" if one.line == "none" else ", **wrong line**"
    return (
        f"| {one.name} | {one.truth} | {one.said} | {step} | {case.costs_ms:.0f} | {costs} "
        f"| {waits} | {right} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", "--only", action="append", choices=CASES, metavar="NAME")
    parser.add_argument("--folder", type=Path, help="where runs are kept, and taken from")
    parser.add_argument("--output", type=Path, help="a JSON file with all that was said")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    cases = [CASES[name] for name in arguments.case or CASES]
    print("| case | truth | said | step, ms | costs, ms | said | waits | |")
    print("|---|---|---|---|---|---|---|---|")
    outcomes = []
    began_s = time.monotonic()
    for case in cases:
        at = folder / case.folder
        if not at.exists():
            run(case, at)
        found = outcome(case, load(case, at))
        if case.beside:
            said = refusal(case, at)
            found = replace(
                found,
                said=f"{found.said}; of the folder: {said or 'not refused'}",
                is_right=found.is_right and bool(said),
            )
        outcomes.append(found)
        print(row(case, outcomes[-1]), flush=True)
    healthy = [one for one in outcomes if one.truth == "nobody"]
    slow = [one for one in outcomes if one.truth != "nobody"]
    print(
        f"\n{sum(one.is_right for one in slow)} of {len(slow)} right, "
        f"{sum(one.is_false for one in slow)} of them with a false name; "
        f"{sum(one.is_false for one in healthy)} false names in {len(healthy)} healthy jobs; "
        f"{time.monotonic() - began_s:.0f} s, load average {os.getloadavg()[0]:.1f}"
    )
    if arguments.output is not None:
        arguments.output.write_text(json.dumps([vars(one) for one in outcomes], indent=1) + "\n")


if __name__ == "__main__":
    main()
