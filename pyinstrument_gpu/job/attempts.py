# SPDX-License-Identifier: Apache-2.0
"""Attempts of one job, after each of which it was started again: what ended each, and what of its
time was lost until the next one went on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyinstrument_gpu.job.job import Job, RankData
from pyinstrument_gpu.parts.parts import Part, Sentence
from pyinstrument_gpu.parts.words import counted, printable, time_text

MOST_ATTEMPTS = 20
"""Of more, the last are read."""


@dataclass(frozen=True)
class Attempt:
    """An attempt after which the job was started again.

    Attributes:
        attempt: its number, from 1.
        verdict: what ended it, as of a job by itself.
        rank: who is named there; missing if nobody is.
        steps: how many steps ended on the rank on which most did.
        duration_ns: from the begin of its recordings to the last heartbeat, on the rank on which
            that is longest.
        lost_ns: from the end of its last step to the begin of the first step of the next attempt,
            by the clock of a machine on which both ran; missing if there is none, or the next has
            no step. Steps that the next one did again are not in it: which these are, is not known.
        files: its runs.
    """

    attempt: int
    verdict: str
    rank: int | None
    steps: int
    duration_ns: int
    lost_ns: int | None
    files: tuple[str, ...]


def attempt_of(job: Job, number: int, verdict: str, rank: int | None) -> Attempt:
    """The attempt that a job is, as far as it is known without the next."""
    return Attempt(
        attempt=number,
        verdict=verdict,
        rank=rank,
        steps=max(one.steps_ended for one in job.ranks),
        duration_ns=max(one.duration_ns for one in job.ranks),
        lost_ns=None,
        files=tuple(one.file for one in job.ranks if one.file is not None),
    )


def with_lost(attempt: Attempt, job: Job, following: Job) -> Attempt:
    """The attempt with what was lost, by its job and that of the next attempt."""
    ends_ns, begins_ns = _last_steps_ns(job), _first_steps_ns(following)
    lost_ns = [begins_ns[host] - end_ns for host, end_ns in ends_ns.items() if host in begins_ns]
    # Less than nothing: the clock has been set.
    return replace(attempt, lost_ns=min((ns for ns in lost_ns if ns >= 0), default=None))


def _last_steps_ns(job: Job) -> dict[str, int]:
    """Return by machine when the last step ended, by its wall clock."""
    found: dict[str, int] = {}
    for host, began_ns, rank in _by_host(job):
        if rank.end.last_steps:
            end_ns = began_ns + rank.end.last_steps[-1].end_ns
            found[host] = max(found.get(host, 0), end_ns)
    return found


def _first_steps_ns(job: Job) -> dict[str, int]:
    """Return by machine when the first step began, where its record is still there."""
    found: dict[str, int] = {}
    for host, began_ns, rank in _by_host(job):
        if len(rank.steps) and rank.steps[0] == 0:
            begin_ns = began_ns + int(rank.step_begin_ns[0])
            found[host] = min(found.get(host, begin_ns), begin_ns)
    return found


def _by_host(job: Job) -> Iterator[tuple[str, int, RankData]]:
    for rank in job.ranks:
        host = rank.environment.get("host")
        if host is not None and rank.began_realtime_ns is not None:
            yield host, rank.began_realtime_ns, rank


def attempts_parts(attempts: Sequence[Attempt]) -> Iterator[Part]:
    """Yield what to say of them; nothing if there were none."""
    if not attempts:
        return
    yield Sentence()
    yield Sentence(f"This is attempt {attempts[-1].attempt + 1}. Before it:", "title")
    for one in attempts:
        took = f"{counted(one.steps, 'step')} in {time_text(one.duration_ns)}"
        yield Sentence(printable(f"Attempt {one.attempt}, {took}: {one.verdict}"))
        if one.lost_ns is not None:
            yield Sentence(
                f"  From its last step to the first of attempt {one.attempt + 1} it took "
                f"{time_text(one.lost_ns)}."
            )
