# SPDX-License-Identifier: Apache-2.0
"""The changes that a simulated program could have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.operations import (
    BeginEpoch,
    Copy,
    Launches,
    MakeBatch,
    NextBatch,
    Operation,
    Phase,
    Read,
    walk,
)
from tests.helpers.simulator.program import Program


def edits(program: Program) -> Iterator[Edit]:
    for is_inside in (True, False):
        yield from _edits(program, is_inside)
    calls = [each for each in program.operations if isinstance(each, Read | Copy)]
    if program.has_device and calls:
        yield Edit("all syncs", is_inside=None)
        if any(isinstance(each, Copy) for each in calls):
            yield Edit("copies", is_inside=None)


def _edits(program: Program, is_inside: bool) -> Iterator[Edit]:
    body = program.step if is_inside else program.outside
    operations = list(walk(body))
    if program.has_device:
        for site in sorted({each.site for each in operations if isinstance(each, Read)}):
            yield Edit("sync", site=site, is_inside=is_inside)
        for path in dict.fromkeys(_launching(body)):
            yield Edit("launches", path=path, is_inside=is_inside)
    if any(isinstance(each, NextBatch | MakeBatch | BeginEpoch) for each in operations):
        yield Edit("data", is_inside=is_inside)


def _launching(body: Sequence[Operation], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The phases that launch kernels themselves."""
    for operation in body:
        if isinstance(operation, Phase):
            yield from _launching(operation.body, (*path, operation.name))
        elif isinstance(operation, Launches) and path:
            yield "/".join(path)
