# SPDX-License-Identifier: Apache-2.0
"""The configurations of a program that its runs have in turn, as `--batch 8` and `--batch 16`.

Runs of two are no more alike than those of two hosts, so changes are looked for within each. An
option that had one value up to some day and then another is no such thing: it may be why there is a
change on that day. Neither is what is another in each run, as a seed.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

FEWEST = 6
"""Runs with a value, for which it is one that recurs."""
_LEAST_SHARE = 0.5
"""Of the runs that have a configuration with as many, or there are too many to tell apart."""
_NUMBER = re.compile(r"-\.?\d")


def configurations(
    commands: Sequence[str | None], sizes: Mapping[str, NDArray[np.float64]]
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the number of each run's configuration, and what sets each apart, the earliest first;
    without names if there is only one.

    Args:
        commands: of the runs in order of time; None unknown.
        sizes: of their steps, by what they count; they tell apart what no option does.
    """
    options = [dict(_options(command or "")) for command in commands]
    names = dict.fromkeys(name for of_run in options for name in of_run)
    of_runs = [[one.get(name, f"without {name}") for one in options] for name in names]
    of_runs += [[f"{value:,.6g} {name}" for value in of.tolist()] for name, of in sizes.items()]
    keys: list[tuple[str, ...]] = [()] * len(options)
    for values in of_runs:
        common = {one for one, count in Counter(values).items() if count >= FEWEST}
        if not _come_in_turn(values, common):
            continue
        finer = [
            (*key, value if value in common else "other")
            for key, value in zip(keys, values, strict=True)
        ]
        counts = Counter(finer)
        in_common = sum(count for count in counts.values() if count >= FEWEST)
        if len(counts) > len({*keys}) and in_common >= _LEAST_SHARE * len(finer):
            keys = finer
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    texts = tuple(" ".join(key) for key in numbers) if len(numbers) > 1 else ()
    return np.array([numbers[key] for key in keys], np.int64), texts


def _options(command: str) -> Iterator[tuple[str, str]]:
    """Yield the options of a command, and its other words by their places, each with its text."""
    try:
        words = shlex.split(command)[1:]
    except ValueError:
        return
    place = 0
    while place < len(words):
        word, *after = words[place : place + 2]
        name, is_given, value = word.partition("=")
        if is_given:
            yield name, f"{name} {value}" if _is_option(name) else word
        elif not _is_option(word):
            yield f"word {place + 1}", word
        elif after and not _is_option(after[0]) and "=" not in after[0]:
            yield word, f"{word} {after[0]}"
            place += 1
        else:
            yield word, word
        place += 1


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.match(word)


def _come_in_turn(values: Sequence[str], common: set[str]) -> bool:
    """Return whether two of the values alternate, rather than one following the other for good."""
    places = {one: [i for i, value in enumerate(values) if value == one] for one in common}
    return any(
        one[0] < other[-1] and other[0] < one[-1] for one, other in combinations(places.values(), 2)
    )
