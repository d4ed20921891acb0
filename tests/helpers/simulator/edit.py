# SPDX-License-Identifier: Apache-2.0
"""A change to a simulated program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A change.

    Attributes:
        kind: "sync" takes the calls of a site out, or, where it is a copy, makes it from pinned
            memory with `non_blocking`. "all syncs" does that to all sites. "copies" makes all
            copies to the device so. "data" has the batches there at once. "launches" enqueues what
            a phase itself launches at once, as a replayed graph: the kernels stay, and so does
            what the host does there beside launching.
        site: of "sync" its site; else -1.
        path: of "launches" the path of its phase; else "".
    """

    kind: str
    site: int = -1
    path: str = ""

    def __str__(self) -> str:
        return (
            f"{self.kind}{f' {self.site}' if self.site >= 0 else ''}{self.path and ' '}{self.path}"
        )
