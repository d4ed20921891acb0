# SPDX-License-Identifier: Apache-2.0
"""A phase that had not ended when the run was last written."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpenPhase:
    """A phase that had begun and not ended when the run was last written.

    Attributes:
        path: its path, as in `Run.paths`.
        thread: its thread, as an index into `Run.threads`.
        begin_ns: begin, in ns since the run began.
        step: index of the step it belongs to; -1 none.
        depth: number of phases around it.
    """

    path: str
    thread: int
    begin_ns: int
    step: int
    depth: int
