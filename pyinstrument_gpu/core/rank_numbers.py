# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_MOST_PARTS = 8


def ranks_text(ranks: Iterable[int]) -> str:
    """Some ranks in words, neighbours as a range: "rank 3", "ranks 0-2, 7 and 9"."""
    numbers = sorted(set(ranks))
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    texts = [f"{first}" if first == last else f"{first}-{last}" for first, last in parts]
    if len(texts) > _MOST_PARTS:
        shown = sum(last - first + 1 for first, last in parts[: _MOST_PARTS - 1])
        texts = [*texts[: _MOST_PARTS - 1], f"{len(numbers) - shown} more"]
    joined = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    return f"rank{'' if len(numbers) == 1 else 's'} {joined}"


def reasons_of_ranks(reasons: Mapping[int, str]) -> list[str]:
    """What there is to say of some ranks, once for all of which it is the same."""
    alike: dict[str, list[int]] = {}
    for rank, reason in reasons.items():
        alike.setdefault(reason, []).append(rank)
    return [f"{ranks_text(ranks)}: {reason}" for reason, ranks in alike.items()]
