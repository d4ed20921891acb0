# SPDX-License-Identifier: Apache-2.0
"""Each phase over the ranks."""

from __future__ import annotations

import numpy as np

from pyinstrument_gpu.analysis.job.findings import Pattern, PhaseAcrossRanks
from pyinstrument_gpu.analysis.job.joined import Joined


def phases(joined: Joined) -> tuple[PhaseAcrossRanks, ...]:
    found = []
    for path, self_ns in zip(joined.paths, joined.self_ns, strict=True):
        if not self_ns.any():
            continue
        means_ns = self_ns.mean(axis=1)
        median_ns = float(np.median(means_ns))
        slowest = int(np.argmax(means_ns))
        found.append(
            PhaseAcrossRanks(
                path=path,
                ranks=int(np.count_nonzero(means_ns)),
                median_ns=median_ns,
                low_ns=float(means_ns.min()),
                high_ns=float(means_ns.max()),
                slowest_rank=joined.ranks[slowest].rank,
                work_ns=float(means_ns[slowest]),
                distance_ns=float(means_ns[slowest]) - median_ns,
                is_significant=False,
                imbalance_ns=0.0,
                waiting_ns=None,
                pattern=Pattern.UNKNOWN,
            )
        )
    return tuple(found)
