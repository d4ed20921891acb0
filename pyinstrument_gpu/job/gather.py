# SPDX-License-Identifier: Apache-2.0
"""A run becomes the data of a rank, which are kept next to those of other ranks, and ranks become a
job: whether they are of one, which are missing, and how they differ."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu import analysis
from pyinstrument_gpu.analysis.contention import step_waits_ns
from pyinstrument_gpu.analysis.step_times import were_profiled
from pyinstrument_gpu.aspects.collectives.data import Collectives, ProcessGroup
from pyinstrument_gpu.core.arrays import distinct, durations_ns_of
from pyinstrument_gpu.core.file.attempts import earlier_left_out, of_last_attempts
from pyinstrument_gpu.core.file.items import STEP_COMPLETE, STEP_ITEM
from pyinstrument_gpu.core.file.run_files import files_in, left_out
from pyinstrument_gpu.core.file.shared_page import last_steps
from pyinstrument_gpu.core.job_membership import not_one_job, program_of, same_run_twice
from pyinstrument_gpu.core.record import OpenPhase
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SpanFlag, span_scopes
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.errors import JobError, RunFileError, RunFileVersionError
from pyinstrument_gpu.job.job import Job, RankData, RankWaits, RunEnd
from pyinstrument_gpu.job.slow_lines import functions_of
from pyinstrument_gpu.parts.words import ranks_text, reasons_of_ranks

_LAST_STEPS = 5
_MOST_CELLS = 6_000_000
"""Of all ranks together, so many phases of steps are kept: 32 bytes each, or 24 where there is no
device. What is made of them takes twice that."""
_MOST_OPERATIONS = 1_500_000
"""Of collective operations, 57 bytes each."""
_MOST_RANKS = 10_000
"""A file that says there are more is not believed so far as to keep less of it."""
_MOST_FILES = 8
_MOST_SENTENCES = 8
_FACTS = {
    "revision": "code revisions",
    "torch": "versions of PyTorch",
    "python": "versions of Python",
    "version": "versions of pyinstrument_gpu",
}
_OF_JOB = ("job", "world_size", "restarts")
_RANK_IN_NAME = re.compile(r"rank[._-]?(\d+)")
_NO_FILE = "there is no run file of it"
_MOST_MISSING = 100_000


def run_end(run: Run) -> RunEnd:
    """Return where the run was at its last heartbeat. Linear in its spans."""
    steps = run.steps
    closed = [step for step in steps[-_LAST_STEPS - 1 :] if step.end_ns >= 0]
    step = run.open_step or (closed[-1] if closed else None)
    path, begin_ns = _place(run, step)
    events = () if run.memory is None else run.memory.out_of_memory
    return RunEnd(
        anchor=dict(run.anchor),
        step=step,
        path=path,
        path_begin_ns=begin_ns,
        last_steps=tuple(closed[-_LAST_STEPS:]),
        out_of_memory=events[-1] if events else None,
        error=run.error,
        active_ns=run.active_ns,
    )


def _left_step_ns(run: Run, file: str | None) -> int:
    """Return when an exception or a break left the last step, where that came behind the file of a
    killed process; -1 unknown."""
    page = None if file is None or run.complete else last_steps(Path(file))
    newest = np.frombuffer(page or b"", STEP_ITEM)[-1:]
    newest = newest[newest["end_ns"] > run.steps.closed["end_ns"].max(initial=-1)]
    return int(newest["end_ns"][newest["flags"] & STEP_COMPLETE == 0].max(initial=-1))


def innermost_phase(run: Run) -> OpenPhase | None:
    """The innermost open phase of the thread whose step is open, or else of any thread."""
    phases = run.open_phases
    if run.open_step is not None:
        thread = run.open_step.thread
        phases = tuple(phase for phase in phases if phase.thread == thread) or phases
    return max(phases, key=lambda phase: phase.depth, default=None)


def _place(run: Run, step: Step | None) -> tuple[str | None, int]:
    """The path of the phase in which it was, and when that began."""
    innermost = innermost_phase(run)
    if innermost is not None:
        return innermost.path, innermost.begin_ns
    if step is None or step.end_ns < 0 or step.complete:
        return None, -1
    # An exception has closed the phases that it came through, and perhaps it came through none.
    spans = run.spans
    is_in_step = (spans["step"] == step.index) & ((spans["flags"] & SpanFlag.STEP_THREAD) != 0)
    found = np.flatnonzero(is_in_step & (spans["depth"] == 0))
    if not len(found):
        return None, -1
    last = spans[found[np.argmax(spans["host_end_ns"][found])]]
    return run.paths[last["path"]], int(last["host_begin_ns"])


def rank_data(run: Run, file: str | None = None) -> RankData:
    """Return what is kept of a rank's run; nothing of it refers to the run.

    Of a job of many ranks, phases and steps the newest steps are kept, as many as fit, and a note
    says so; of collective operations the newest as well. Takes about 1 ms per 10,000 spans.

    Raises:
        ValueError: the run does not say which rank it is of.
    """
    environment = run.environment
    rank = environment.get("rank")
    if rank is None:
        raise ValueError("the run does not say which rank it is of")
    notes = list(run.notes)
    steps = analysis.of(run).kept_steps
    steps = steps[steps["end_ns"] >= 0]
    steps = steps[~were_profiled(run, steps["index"])]
    spans = np.flatnonzero(span_scopes(run.spans) == Scope.STEP)
    # Those of steps that are kept.
    place = np.searchsorted(steps["index"], run.spans["step"][spans])
    is_kept = np.append(steps["index"], -1)[place] == run.spans["step"][spans]
    spans, place = spans[is_kept], place[is_kept]
    paths = distinct(run.spans["path"][spans])
    ranks = min(environment.get("world_size", 1), _MOST_RANKS)
    most = max(1, _MOST_CELLS // max(1, len(paths)) // ranks)
    if len(steps) > most:
        notes.append(
            f"of its {len(steps):,} steps the last {most:,} are compared with those of other ranks"
        )
        first = len(steps) - most
        spans, place = spans[place >= first], place[place >= first] - first
        steps = steps[first:]
    shape = len(paths), len(steps)
    cell = np.searchsorted(paths, run.spans["path"][spans]) * len(steps) + place

    def summed(values: NDArray[np.int64]) -> NDArray[np.int64]:
        sums = np.zeros(shape, np.int64)
        np.add.at(sums.reshape(-1), cell, values)
        return sums

    first_begin_ns = np.full(shape, np.iinfo(np.int64).max)
    np.minimum.at(first_begin_ns.reshape(-1), cell, run.spans["host_begin_ns"][spans])
    calls = np.bincount(cell, minlength=first_begin_ns.size).reshape(shape)
    first_begin_ns[calls == 0] = -1
    last_end_ns = np.full(shape, np.int64(-1))
    np.maximum.at(last_end_ns.reshape(-1), cell, run.spans["host_end_ns"][spans])
    of_spans_ns = run.span_device_ns[spans]
    if (of_spans_ns >= 0).any():
        timed = np.bincount(cell[of_spans_ns >= 0], minlength=calls.size).reshape(shape)
        is_timed = (timed == calls) & (calls > 0)
        device_ns = np.where(is_timed, summed(np.maximum(of_spans_ns, 0)), -1)
    else:
        device_ns = np.broadcast_to(np.int64(-1), shape)
    waits_ns, processor = step_waits_ns(run, steps), run.cpu_contention
    return RankData(
        rank=rank,
        file=file,
        environment=environment,
        complete=run.complete,
        notes=tuple(notes),
        dropped=run.dropped,
        duration_ns=run.duration_ns,
        began_realtime_ns=run.began_realtime_ns,
        steps=steps["index"].copy(),
        steps_ended=run.steps_ended,
        step_begin_ns=steps["begin_ns"].copy(),
        step_ns=durations_ns_of(steps),
        paths=tuple(run.paths[path] for path in paths.tolist()),
        first_begin_ns=first_begin_ns,
        last_end_ns=last_end_ns,
        # Of runs that were made by hand they may not be known.
        self_ns=summed(np.maximum(run.span_self_ns[spans], 0)),
        device_ns=device_ns,
        processor_wait_ns=None if np.isnan(waits_ns).all() else waits_ns,
        thread_wait_share=processor.share(processor.thread_wait_ns) if processor else None,
        collectives=_newest(run.collectives, max(1, _MOST_OPERATIONS // ranks)),
        waits=_waits(run, steps, spans, paths),
        stalls=run.stalls,
        end=replace(run_end(run), left_step_ns=_left_step_ns(run, file)),
        functions=functions_of(run),
    )


def _newest(collectives: Collectives, most: int) -> Collectives:
    cut = len(collectives.events) - most
    if cut > 0:
        events = collectives.events[cut:].copy()
        collectives = replace(collectives, events=events, missed=collectives.missed + cut)
    return replace(collectives, waits=collectives.waits[:0].copy(), waits_since_ns=-1)


def _waits(
    run: Run, steps: NDArray[np.void], spans: NDArray[np.intp], paths: NDArray[Any]
) -> RankWaits | None:
    """Return the waits of these steps, in these spans of them."""
    waits, since_ns = run.collectives.waits, run.collectives.waits_since_ns
    if since_ns < 0 or not len(steps):
        return None
    step = np.searchsorted(steps["end_ns"], waits["begin_ns"])
    waits, step = waits[step < len(steps)], step[step < len(steps)]
    begin_ns, of_step = waits["begin_ns"], steps[step]
    follows = np.diff(steps["index"], prepend=-1)[step] == 1
    is_in = (begin_ns >= of_step["begin_ns"]) | (follows & (step > 0))
    waits, step, begin_ns = waits[is_in], step[is_in], begin_ns[is_in]
    row = np.where(begin_ns < steps["begin_ns"][step], len(paths) + 1, len(paths))
    depths = run.spans["depth"][spans]
    for depth in distinct(depths):
        at_depth = run.spans[spans[depths == depth]]
        at_depth = at_depth[np.argsort(at_depth["host_begin_ns"])]
        last = np.searchsorted(at_depth["host_begin_ns"], begin_ns, side="right") - 1
        inside = (last >= 0) & (begin_ns <= at_depth["host_end_ns"][last])
        row[inside] = np.searchsorted(paths, at_depth["path"][last[inside]])
    shape = len(paths) + 2, len(steps)
    time_ns = waits["end_ns"] - begin_ns
    total_ns = np.broadcast_to(np.int64(0), shape)
    if len(waits):
        total_ns = np.zeros(shape, np.int64)
        np.add.at(total_ns, (row, step), time_ns)
    p2p_ns = np.zeros(len(steps), np.int64)
    np.add.at(p2p_ns, step[waits["is_p2p"]], time_ns[waits["is_p2p"]])
    return RankWaits(
        since_ns, total_ns, p2p_ns, np.bincount(row[~waits["is_p2p"]], minlength=len(paths) + 2)
    )


def _with_shared_groups(
    rank: RankData, known: dict[tuple[ProcessGroup, str], ProcessGroup]
) -> RankData:
    """Return the rank with process groups that are those of other ranks: each lists all of its
    ranks, and of thousands there are thousands of lists."""
    groups = (known.setdefault((one, one.description), one) for one in rank.collectives.groups)
    return replace(rank, collectives=replace(rank.collectives, groups=tuple(groups)))


def load_job(paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> Job:
    """Load a job for `Job.load`."""
    ranks: list[RankData] = []
    unknown: dict[str, str] = {}
    unreadable: dict[int, str] = {}
    notes: list[str] = []
    groups: dict[tuple[ProcessGroup, str], ProcessGroup] = {}
    files = list(_files(paths))
    last, earlier = of_last_attempts([path for path, _ in files])
    if earlier:
        notes.append(earlier_left_out(earlier))
        kept = set(last)
        files = [one for one in files if one[0] in kept]
    for path, is_named in files:
        found = _RANK_IN_NAME.search(path.name)
        try:
            run = Run.load(path)
        except FileNotFoundError:
            raise
        except (OSError, RunFileError) as error:
            # A reason that is the same for all is told once for all.
            is_format = isinstance(error, RunFileVersionError)
            reason = str(error).removeprefix(f"{path}: ") if is_format else str(error)
            if found is None:
                unknown[str(path)] = reason
            else:
                unreadable[int(found[1])] = reason
            continue
        if "rank" in run.environment and run.environment.get("world_size") != 1:
            ranks.append(_with_shared_groups(rank_data(run, str(path)), groups))
        elif is_named and run.environment:
            raise JobError(
                f"{path} is not a rank of a job: it was recorded by a single process, or "
                "outside of torchrun before its process group was made. Look at it by itself"
            )
        elif found is not None and not run.environment:
            unreadable[int(found[1])] = f"{path} was cut short before it says what it is of"
        else:
            notes.append(f"left out: {path} does not say of which rank it is")
    job = job_of(ranks, unreadable, [*left_out(unknown), *notes])
    return replace(job, earlier=tuple(tuple(map(str, attempt)) for attempt in earlier))


def _files(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
) -> Iterator[tuple[Path, bool]]:
    """The run files, and whether each was named itself."""
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    if not given:
        raise JobError("no run files were given")
    for path in map(Path, given):
        if not path.is_dir():
            yield path, True
            continue
        yield from ((one, False) for one in files_in(path))


def job_of(
    ranks: Sequence[RankData],
    unreadable: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
) -> Job:
    """The job of these ranks.

    Args:
        ranks: in any order.
        unreadable: for ranks that are not among them why not, where it is known.
        notes: what is to be said first.

    Raises:
        JobError: they are not different ranks of one job.
    """
    why = {} if unreadable is None else unreadable
    if not ranks:
        said = [*notes, *reasons_of_ranks(why)]
        raise JobError("there is no run of a rank" + "".join(f"\n    {note}" for note in said))
    ranks = sorted(ranks, key=lambda rank: rank.rank)
    names = [rank.file or f"the run of rank {rank.rank}" for rank in ranks]
    twice = same_run_twice(ranks, names)
    if twice is not None:
        raise JobError(twice)
    wrong = not_one_job(ranks, names)
    if wrong is not None:
        raise JobError("\n".join([f"{wrong}. Give the runs of one job:", *_jobs(ranks)]))
    sizes = [rank.environment["world_size"] for rank in ranks if "world_size" in rank.environment]
    world_size = max([*sizes, *(rank.rank + 1 for rank in ranks)])
    if world_size < 2:
        raise JobError(f"{names[0]} is of a job of one process: there are no ranks to compare")
    there = {rank.rank for rank in ranks}
    # A file may say that there are billions.
    absent = (rank for rank in range(world_size) if rank not in there)
    missing = {rank: why.get(rank, _NO_FILE) for rank in islice(absent, _MOST_MISSING)}
    beyond = {rank: reason for rank, reason in why.items() if rank not in missing}
    others = [f"left out: {sentence}" for sentence in reasons_of_ranks(beyond)]
    job_ids = [rank.environment["job"] for rank in ranks if "job" in rank.environment]
    return Job(
        ranks=tuple(ranks),
        world_size=world_size,
        job_id=job_ids[0] if job_ids else None,
        missing=missing,
        notes=(*notes, *others, *_numbers(ranks, sizes), *_differences(ranks)),
    )


def _numbers(ranks: Sequence[RankData], sizes: Sequence[int]) -> list[str]:
    """Return what is doubtful about how many ranks there are."""
    if not sizes:
        return ["the runs don't say how many ranks the job had: there may be more"]
    beyond = [rank.rank for rank in ranks if rank.rank >= max(sizes)]
    if not beyond:
        return []
    return [
        f"the runs say that the job had {max(sizes):,} ranks, but there is {ranks_text(beyond)}"
    ]


def _jobs(ranks: Sequence[RankData]) -> list[str]:
    """The jobs that the runs seem to be of, a line each."""
    jobs: dict[tuple[Any, ...], list[list[RankData]]] = {}
    # Of jobs of one command at one time, those in one folder belong together.
    folders = {rank.file: str(Path(rank.file or "").parent) for rank in ranks}
    for rank in sorted(ranks, key=lambda rank: (folders[rank.file], rank.began_realtime_ns or 0)):
        key = *(rank.environment.get(name) for name in _OF_JOB), program_of(rank)
        of_key = jobs.setdefault(key, [[]])
        newest = of_key[-1]
        if any(other.rank == rank.rank for other in newest) or (
            newest and not_one_job([newest[0], rank], ["", ""]) is not None
        ):
            newest = []
            of_key.append(newest)
        newest.append(rank)
    lines = []
    for (job, world_size, restarts, _), found in jobs.items():
        for of_job in found:
            said = [] if job is None else [f"job {job}"]
            said += [] if world_size is None else [f"{world_size} ranks"]
            said += [f"after {restarts} restart{'' if restarts == 1 else 's'}"] if restarts else []
            files = [rank.file or f"rank {rank.rank}" for rank in of_job]
            lines.append(f"    {', '.join(said) or 'a job'}: {_listed(files, ' ')}")
    more = len(lines) - _MOST_SENTENCES
    return lines if more <= 0 else [*lines[:_MOST_SENTENCES], f"    and {more:,} more jobs"]


def _differences(ranks: Sequence[RankData]) -> list[str]:
    """Return what the reader should know before comparing them, in sentences."""
    notes = []
    for key, what in _FACTS.items():
        by_value: dict[str, list[int]] = {}
        for rank in ranks:
            if rank.environment.get(key) is not None:
                by_value.setdefault(rank.environment[key], []).append(rank.rank)
        if len(by_value) > 1:
            parts = [f"{value} on {ranks_text(found)}" for value, found in by_value.items()]
            notes.append(f"the ranks ran different {what}: {_listed(parts)}")
    notes += _other_phases(ranks)
    open_ranks = [rank.rank for rank in ranks if not rank.complete]
    if open_ranks:
        notes.append(
            f"{ranks_text(open_ranks)}: the recording was not stopped, so the process ended before "
            "that or is still running"
        )
    cut = [rank.rank for rank in ranks if any("left out" in note for note in rank.notes)]
    if cut:
        notes.append(f"{ranks_text(cut)}: parts of the run file were left out, as its notes say")
    ended = Counter(rank.steps_ended for rank in ranks)
    if len(ended) > 1:
        usual, count = ended.most_common(1)[0]
        parts = [
            f"{rank.rank} ended {rank.steps_ended:,}" for rank in ranks if rank.steps_ended != usual
        ]
        if 2 * count > len(ranks):
            notes.append(f"most ranks ended {usual:,} steps, but rank {_listed(parts, ', rank ')}")
        else:
            between = f"{min(ended):,} to {max(ended):,}"
            notes.append(f"the ranks ended different numbers of steps, {between}")
    return notes


def _other_phases(ranks: Sequence[RankData]) -> list[str]:
    having = Counter(path for rank in ranks for path in rank.paths)
    usual = {path for path, count in having.items() if 2 * count > len(ranks)}
    if len(ranks) == 2:
        usual = set(ranks[0].paths)
    by_difference: dict[tuple[tuple[str, ...], tuple[str, ...]], list[int]] = {}
    for rank in ranks:
        if not len(rank.steps):
            continue
        paths = set(rank.paths)
        difference = tuple(sorted(paths - usual)), tuple(sorted(usual - paths))
        if any(difference):
            by_difference.setdefault(difference, []).append(rank.rank)
    notes = []
    for (more, fewer), found in by_difference.items():
        said = [f"has {_listed(more)} alone"] if more else []
        said += [f"lacks {_listed(fewer)}"] if fewer else []
        notes.append(f"{ranks_text(found)}: other phases; {' and '.join(said)}")
    more_notes = len(notes) - _MOST_SENTENCES
    if more_notes > 0:
        notes = [*notes[:_MOST_SENTENCES], f"{more_notes:,} more groups of ranks have other phases"]
    return notes


def _listed(parts: Sequence[str], between: str = ", ") -> str:
    more = len(parts) - _MOST_FILES
    return between.join(parts[:_MOST_FILES]) + (f" and {more:,} more" if more > 0 else "")
