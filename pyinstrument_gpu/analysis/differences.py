# SPDX-License-Identifier: Apache-2.0
"""Other differences between two sides of runs: machine, code, packages, variables, command line."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyinstrument_gpu.core.program_facts import KEY
from pyinstrument_gpu.core.run import Run

CODE = ("code revision", "uncommitted changes")
COMMAND_LINE = "command line"
_TOLD_APART = ("torch", "pyinstrument_gpu")
"""Packages whose versions have a line of their own."""
_NONE = "none"
_MOST_FILES = 5
_HASH_DIGITS = 12


@dataclass(frozen=True)
class Difference:
    """Something that is not the same in the runs of both sides.

    Attributes:
        what: it is, such as "torch version" or "package numpy".
        before, after: what it was in the runs of each side, each once.
    """

    what: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True)
class Differences:
    """The other differences between two sides.

    Attributes:
        found: what does, in the order in which it is worth a look.
        same: what is known of all runs, and the same.
        unknown: what some run does not say.
    """

    found: tuple[Difference, ...]
    same: tuple[str, ...]
    unknown: tuple[str, ...]


def facts_of(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a run, None where it does not say it, as values for JSON."""
    return {what: value_of(environment) for what, value_of in _VALUES.items()}


def differences(before: Sequence[Run], after: Sequence[Run]) -> Differences:
    """Return the differences between the environments of the runs."""
    sides = [[facts_of(run.environment) for run in runs] for runs in (before, after)]
    return differences_of_facts(*sides)


def differences_of_facts(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Differences:
    """Return the differences between what `facts_of` gave for each run."""
    found: list[Difference] = []
    same: list[str] = []
    unknown: list[str] = []
    for what in _VALUES:
        values = [[facts.get(what) for facts in side] for side in (before, after)]
        known = [[value for value in side if value is not None] for side in values]
        # What the runs of one side don't say can't be told to differ.
        new = [*_compared(what, known)] if all(known) else []
        found += new
        if known != values:
            unknown.append(what)
        elif not new:
            same.append(what)
    return Differences(tuple(found), tuple(same), tuple(unknown))


def _compared(what: str, sides: Sequence[Sequence[Any]]) -> Iterator[Difference]:
    names = {name for side in sides for value in side if isinstance(value, dict) for name in value}
    if not names:
        yield from _differing(what, sides)
    for name in sorted(names.difference(_TOLD_APART)):
        of_name = [[value.get(name, _NONE) for value in side] for side in sides]
        yield from _differing(f"{what.removesuffix('s')} {name}", of_name)


def _differing(what: str, sides: Sequence[Sequence[Any]]) -> Iterator[Difference]:
    before, after = (tuple(sorted({str(value) for value in side})) for side in sides)
    if before != after:
        yield Difference(what, before, after)


def _uncommitted(facts: Mapping[str, Any]) -> str | None:
    changes = facts.get("uncommitted")
    if changes is None or changes["hash"] is None:
        return None if changes is None else _NONE
    files = [*changes["files"][:_MOST_FILES]]
    more = ["..."] if len(changes["files"]) > _MOST_FILES else []
    return f"{changes['hash'][:_HASH_DIGITS]} in {', '.join([*files, *more])}"


def _command_line(facts: Mapping[str, Any]) -> str | None:
    words = facts.get("arguments")
    return None if not words else shlex.join(words)


def _gpus(facts: Mapping[str, Any]) -> str | None:
    found = facts.get("gpus")
    return None if found is None else ", ".join(found) or _NONE


def _workers(facts: Mapping[str, Any]) -> int | None:
    workers: int | None = facts.get(KEY, {}).get("loader_workers")
    return workers


def _ranks(facts: Mapping[str, Any]) -> int | None:
    ranks: int | None = facts.get("world_size") or facts.get(KEY, {}).get("ranks")
    return ranks


def _fact(name: str) -> Callable[[Mapping[str, Any]], Any]:
    """Return a reader of one fact; one that is there and null counts as missing."""
    return lambda facts: _NONE if facts.get(name, "") is None else facts.get(name)


_VALUES: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "host": _fact("host"),
    "GPUs": _gpus,
    "driver": _fact("driver"),
    "cores": _fact("cores"),
    "number of ranks": _ranks,
    COMMAND_LINE: _command_line,
    CODE[0]: _fact("revision"),
    CODE[1]: _uncommitted,
    "loader workers": _workers,
    "Python version": _fact("python"),
    "torch version": _fact("torch"),
    "CUDA version": _fact("cuda"),
    "packages": _fact("packages"),
    "environment variables": _fact("variables"),
    "platform": _fact("platform"),
    "pyinstrument_gpu version": _fact("version"),
}
"""What is compared."""
