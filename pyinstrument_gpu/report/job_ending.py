# SPDX-License-Identifier: Apache-2.0
"""How a job ended, or why it does not go on, as text for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from pyinstrument_gpu.document.job_ending import JobEnding, RankEnding
from pyinstrument_gpu.parts.parts import Part, Row, Sentence, Table, table
from pyinstrument_gpu.parts.words import UNKNOWN, counted, duration, printable, reasons_of_ranks
from pyinstrument_gpu.report.console import for_terminal, notes

_MOST_RANKS = 16
_MOST_LINES = 12
_STEPS = 3


def ending_report(ending: JobEnding, *, width: int | None = None, color: bool | None = None) -> str:
    """What `why` prints; `width` and `color` as in `for_terminal`."""
    return for_terminal(_parts(ending), width, color)


def _parts(ending: JobEnding) -> Iterator[Part]:
    yield Sentence(printable(ending.verdict), "title")
    for sentence in ending.evidence:
        yield Sentence(f"  {printable(sentence)}")
    yield Sentence()
    yield _table(ending.ranks[:_MOST_RANKS])
    others = Counter(rank.condition.value for rank in ending.ranks[_MOST_RANKS:])
    if others:
        parts = [f"{count:,} {condition}" for condition, count in others.items()]
        yield Sentence(f"... and {counted(sum(others.values()), 'more rank')}: {', '.join(parts)}")
    for rank in ending.ranks[: 1 if ending.rank is None else 2]:
        yield from _stacks(rank, ending.world_size)
    missing = reasons_of_ranks({one.rank: one.reason for one in ending.missing})
    yield from notes([*missing, *ending.notes])


def _table(ranks: Sequence[RankEnding]) -> Table:
    headers = ["rank", "", "last sign of life", "last steps", "collective"]
    rows = []
    for rank in ranks:
        last = max(rank.collectives, key=lambda one: -(one.age_ns or 0), default=None)
        operation = UNKNOWN
        if last is not None:
            operation = f"{last.operation or ''} {last.sequence}".strip()
        steps = [duration(one.duration_ns) for one in rank.last_steps[-_STEPS:]]
        cells = [
            rank.condition.value,
            _when(rank),
            ", ".join(steps) or UNKNOWN,
            operation if last is None or last.sequence >= 0 else "none",
        ]
        rows.append(Row(str(rank.rank), cells, note=rank.where))
    return table([*headers], [rows])


def _when(rank: RankEnding) -> str:
    if rank.silent_ns is not None:
        return f"{duration(rank.silent_ns)} ago"
    if rank.before_last_ns:
        return f"{duration(rank.before_last_ns)} before the last"
    return f"at {duration(rank.duration_ns)}"


def _stacks(rank: RankEnding, world_size: int) -> Iterator[Sentence]:
    for stack in rank.stacks[:1]:
        yield Sentence()
        of = "" if world_size == 1 else f" of rank {rank.rank}"
        yield Sentence(
            f"Python stack{of}, {printable(stack.thread)}, innermost call first", "title"
        )
        lines = stack.text.splitlines()
        for line in lines[:_MOST_LINES]:
            yield Sentence(f"  {printable(line.strip())}")
        if len(lines) > _MOST_LINES:
            yield Sentence(f"  ... and {counted(len(lines) - _MOST_LINES, 'more line')}", "note")
