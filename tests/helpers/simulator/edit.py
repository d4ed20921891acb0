# SPDX-License-Identifier: Apache-2.0
"""A change to a simulated program."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Edit:
    """A change, to what is done inside steps or to what is done between them.

    Attributes:
        kind: "sync" takes the calls of a site out, or, where it is a copy, makes it from pinned
            memory with `non_blocking`. "all syncs" does that to all sites. "copies" makes all
            copies to the device so. "data" has the batches there at once; between steps, those of
            an evaluation, and it starts workers in no time. "workers" does what advice can: workers
            that are enough, kept from epoch to epoch, which still hand over each batch. "launches"
            enqueues what a phase itself launches at once, as a replayed graph: the kernels stay,
            and so does what the host does there beside launching.
        site: of "sync" its site; else -1.
        path: of "launches" the path of its phase; else "".
        is_inside: None, where it is a change to both.
    """

    kind: str
    site: int = -1
    path: str = ""
    is_inside: bool | None = True

    def __str__(self) -> str:
        words = [self.kind]
        if self.site >= 0:
            words.append(str(self.site))
        if self.path:
            words.append(self.path)
        if self.is_inside is False:
            words.append("outside")
        return " ".join(words)
