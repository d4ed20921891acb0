# SPDX-License-Identifier: Apache-2.0
"""Names and numbers in words: durations, sizes, shares, counts and ranks.

Names are shown as they are, except that what would not print (line breaks, escape sequences) is
written as an escape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

UNKNOWN = "-"
"""Stands for a number that is not known."""


_MOST_PARTS = 8


def duration(duration_ns: float) -> str:
    """A duration in three digits."""
    for name, ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        # What would round up to the next larger unit is written in that.
        if abs(duration_ns) >= 0.9995 * ns:
            size = duration_ns / ns
            return f"{size:.{0 if abs(size) >= 99.95 else 1 if abs(size) >= 9.995 else 2}f} {name}"
    return f"{duration_ns:.0f} ns"


def time_text(time_ns: int) -> str:
    """A time for people, in the largest fitting unit."""
    seconds = time_ns / 1e9
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (48 * 3600, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86400:.0f} days"


def size(size_bytes: float) -> str:
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size_bytes) >= unit:
            return f"{size_bytes / unit:.2f} {name}"
    return f"{size_bytes:.0f} bytes"


def size_interval(size_bytes: float, low_bytes: float, high_bytes: float, what: str = "") -> str:
    """The interval of a size as it stands behind it, and what that is: " (1 KiB to 2 KiB)"; nothing
    where it reads the same at both ends."""
    low, high = size(low_bytes), size(high_bytes)
    return "" if size(size_bytes) == low == high else f" ({low} to {high}{what})"


def percent(part: float, whole: float) -> str:
    """A share in percent, without the sign; "-" for what is no share of the whole."""
    return f"{100 * part / whole:.1f}" if whole and 0 <= part <= whole else UNKNOWN


def share(part: float, whole: float) -> str:
    """A share as it stands behind a duration: " (12.3%)", or nothing for what is no share."""
    text = percent(part, whole)
    return "" if text == UNKNOWN else f" ({text}%)"


def small_percent(part: float, whole: float) -> str:
    """Return two digits of a share that is small as a rule, with the sign."""
    percentage = 100 * part / whole
    if 0 < percentage < 0.001:
        return "<0.001%"
    return f"{percentage:.0f}%" if percentage >= 10 else f"{percentage:.2g}%"


def rounded_percent(share: float) -> str:
    """Return two digits of a share that may be more than all of it."""
    percentage = 100 * share
    return f"{percentage:.2g} %" if percentage < 99.5 else f"{percentage:,.0f} %"


def confidence_percent(confidence: float) -> str:
    """Return three digits, or as many more as it takes not to say that anything is certain."""
    for digits in range(3, 17):
        text = f"{100 * confidence:.{digits}g}"
        if float(text) < 100:
            break
    return f"{text} %"


def rate(per_second: float) -> str:
    """Return three digits, or all before the point."""
    return f"{per_second:,.0f}" if per_second >= 99.95 else f"{per_second:.3g}"


def flops_text(flops: float) -> str:
    """A number of floating-point operations in three digits: "312 TFLOP"."""
    for prefix, unit in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if flops >= 0.9995 * unit:
            return f"{rate(flops / unit)} {prefix}FLOP"
    return f"{flops:,.0f} FLOP"


def counted(count: int, noun: str) -> str:
    """The number with its noun, of which an "s" makes the plural."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def capitalised(text: str) -> str:
    """Return the text with a capital letter, as a sentence begins."""
    return text[:1].upper() + text[1:]


def printable(text: str) -> str:
    """The text with an escape (as in a Python literal) for each character that does not print."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


@dataclass(frozen=True)
class Unit:
    """The unit of the durations in one table: fixed, so that they compare at a glance."""

    name: str
    ns: int
    decimals: int

    @classmethod
    def fitting(cls, largest_ns: float, total_ns: float = 0) -> Unit:
        """The unit for durations of which this is the largest, and totals of up to `total_ns`."""
        if total_ns >= 1e9:
            largest_ns = max(largest_ns, 1e6)
        if largest_ns >= 10e9:
            return cls("s", 1_000_000_000, 3)
        if largest_ns >= 1e6:
            return cls("ms", 1_000_000, 3 if largest_ns < 1e9 else 1)
        return cls("us", 1_000, 2)

    @classmethod
    def brief(cls, largest_ns: float) -> Unit:
        """The unit in which the largest duration has three digits, or more before the point."""
        for name, ns in (("s", 1_000_000_000), ("ms", 1_000_000)):
            if largest_ns >= ns:
                return cls(name, ns, 2 if largest_ns < 10 * ns else 1)
        return cls("us", 1_000, 1)

    def text(self, duration_ns: float | None) -> str:
        """The number without the unit; "-" where it is not known."""
        return UNKNOWN if duration_ns is None else f"{duration_ns / self.ns:.{self.decimals}f}"


def ranks_text(ranks: Iterable[int]) -> str:
    """Return some ranks in words, neighbours as a range: "rank 3", "ranks 0-2, 7 and 9"."""
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
    """Return what there is to say of some ranks, once for all of which it is the same."""
    alike: dict[str, list[int]] = {}
    for rank, reason in reasons.items():
        alike.setdefault(reason, []).append(rank)
    return [f"{ranks_text(ranks)}: {reason}" for reason, ranks in alike.items()]
