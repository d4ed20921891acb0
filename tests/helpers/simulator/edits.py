# SPDX-License-Identifier: Apache-2.0
"""The changes that a simulated program could have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tests.helpers.simulator.edit import Edit
from tests.helpers.simulator.operations import Copy, Launches, Operation, Phase, Read
from tests.helpers.simulator.program import Program


def edits(program: Program) -> Iterator[Edit]:
    operations = list(program.operations)
    if program.has_device:
        sites = sorted({each.site for each in operations if isinstance(each, Read)})
        for site in sites:
            yield Edit("sync", site=site)
        if program.sites:
            yield Edit("all syncs")
        if any(isinstance(each, Copy) for each in operations):
            yield Edit("copies")
        for path in dict.fromkeys(_launching(program.step)):
            yield Edit("launches", path=path)
    if program.takes_batches:
        yield Edit("data")


def _launching(body: Sequence[Operation], path: tuple[str, ...] = ()) -> Iterator[str]:
    """The phases that launch kernels themselves."""
    for operation in body:
        if isinstance(operation, Phase):
            yield from _launching(operation.body, (*path, operation.name))
        elif isinstance(operation, Launches) and path:
            yield "/".join(path)
