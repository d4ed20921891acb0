# SPDX-License-Identifier: Apache-2.0
"""The waits of ranks for sends and receives, as the stages of a pipeline do, and which rank limits
the others.

A file of its own, as it says nothing of jobs without operations point to point.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.job.findings import Pipeline, Stragglers
from pyinstrument_gpu.job.joined import Joined
from pyinstrument_gpu.job.own_work import HowKnown, OwnWork

_LEAST_WAITING = 0.01
"""Of a step."""


def peer_waits_ns(joined: Joined, work: OwnWork, step_ns: float) -> NDArray[np.float64] | None:
    """Return by rank how long its host waits for sends and receives in each step; None if hosts
    hardly do."""
    if work.how != HowKnown.ARRIVALS:
        return None
    waits_ns = np.zeros(len(joined.ranks))
    for number, rank in enumerate(joined.ranks):
        if rank.waits is not None:
            waits_ns[number] = rank.waits.p2p_ns[joined.places[number][work.steps]].mean()
    return waits_ns if waits_ns.mean() >= _LEAST_WAITING * step_ns else None


def pipeline(joined: Joined, work: OwnWork | str, found: Stragglers) -> Pipeline | None:
    """Return the pipeline; None if hosts hardly wait for point-to-point operations."""
    if isinstance(work, str) or not found.step_ns:
        return None
    waits_ns = peer_waits_ns(joined, work, found.step_ns)
    if waits_ns is None:
        return None
    works_ns = work.total_ns.mean(axis=1)
    longest = int(np.argmax(works_ns))
    limits = (joined.ranks[longest].rank,) if found.straggler is None else found.straggler.ranks
    is_limit = np.array([rank.rank in limits for rank in joined.ranks])
    return Pipeline(
        limits=limits if found.straggler is not None else (),
        work_ns=float(works_ns[is_limit].mean()),
        others_ns=float(np.median(works_ns[~is_limit])),
        waiting_ns=float(waits_ns.mean()),
        waiting_share=float(waits_ns.mean()) / found.step_ns,
        exposed_ns=float(waits_ns[is_limit].mean()),
    )
