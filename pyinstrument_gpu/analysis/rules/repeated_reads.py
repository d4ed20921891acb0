# SPDX-License-Identifier: Apache-2.0
"""Values read twice in a step: what the second read costs.

The first read of a step waits until the device is done. A second one behind it waits for nothing,
whatever it reads, so its price is that of the call.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pyinstrument_gpu.analysis.correlation_points import CALL_NS, COPY_NS_PER_BYTE
from pyinstrument_gpu.analysis.rules.case import READS, Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth
from pyinstrument_gpu.core.distinct import distinct


def repeated_reads(case: Case) -> Iterator[Finding]:
    """A site counts if half of its reads that follow another read of the step take no longer than
    such a call does."""
    waits = case.waits
    reads = waits[case.run.syncs.of_kinds(waits, READS)]
    follows = reads["step"][1:] == reads["step"][:-1]
    before, later = reads[:-1][follows], reads[1:][follows]
    call_ns = CALL_NS + COPY_NS_PER_BYTE * later["bytes"].astype(np.int64)
    drained = [
        int(site)
        for site in distinct(later["site"])
        if np.median((later["duration_ns"] - call_ns)[later["site"] == site]) <= 0
    ]
    if not drained:
        return
    chosen = np.isin(later["site"], drained)
    calls = np.count_nonzero(chosen) / len(case.steps)
    time_ns = float(later["duration_ns"][chosen].sum()) / len(case.steps)
    first = case.line(int(before["site"][chosen][0]))
    yield Finding(
        "read each value once",
        "5-10 %",
        Worth(0.0, time_ns, case.step_ns),
        f"{calls:.2f} reads per step take {ms(time_ns)}: {case.lines(drained)} after {first}, "
        "which has already waited",
    )
