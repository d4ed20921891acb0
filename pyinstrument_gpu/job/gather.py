# SPDX-License-Identifier: Apache-2.0
"""Ranks become a job: whether they are of one, which are missing, and how they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from pyinstrument_gpu.core.job_membership import not_one_job, same_run_twice
from pyinstrument_gpu.core.rank_numbers import ranks_text, reasons_of_ranks
from pyinstrument_gpu.errors import JobError
from pyinstrument_gpu.job.data import JobData, RankData

_MOST_FILES = 8
_MOST_SENTENCES = 8
_FACTS = {
    "revision": "code revisions",
    "torch": "versions of PyTorch",
    "python": "versions of Python",
    "version": "versions of pyinstrument_gpu",
}
_NO_FILE = "there is no run file of it"
_MOST_MISSING = 100_000


def job_of(
    ranks: Sequence[RankData],
    unreadable: Mapping[int, str] | None = None,
    notes: Sequence[str] = (),
) -> JobData:
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
    return JobData(
        ranks=tuple(ranks),
        world_size=world_size,
        job_id=job_ids[0] if job_ids else None,
        missing=missing,
        notes=(*notes, *others, *_numbers(ranks, sizes), *_differences(ranks)),
    )


def _numbers(ranks: Sequence[RankData], sizes: Sequence[int]) -> list[str]:
    """What is doubtful about how many ranks there are."""
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
    for rank in sorted(ranks, key=lambda rank: rank.began_realtime_ns or 0):
        key = tuple(rank.environment.get(name) for name in ("job", "world_size", "restarts"))
        of_key = jobs.setdefault(key, [[]])
        newest = of_key[-1]
        if any(other.rank == rank.rank for other in newest) or (
            newest and not_one_job([newest[0], rank], ["", ""]) is not None
        ):
            newest = []
            of_key.append(newest)
        newest.append(rank)
    lines = []
    for (job, world_size, restarts), found in jobs.items():
        for of_job in found:
            said = [] if job is None else [f"job {job}"]
            said += [] if world_size is None else [f"{world_size} ranks"]
            said += [f"after {restarts} restart{'' if restarts == 1 else 's'}"] if restarts else []
            files = [rank.file or f"rank {rank.rank}" for rank in of_job]
            lines.append(f"    {', '.join(said) or 'a job'}: {_listed(files, ' ')}")
    more = len(lines) - _MOST_SENTENCES
    return lines if more <= 0 else [*lines[:_MOST_SENTENCES], f"    and {more:,} more jobs"]


def _differences(ranks: Sequence[RankData]) -> list[str]:
    """What the reader should know before comparing them, in sentences."""
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
