# SPDX-License-Identifier: Apache-2.0
"""Slow steps of a run that is being recorded, summed by cause from look to look. The sums only
grow, though the history that is looked at forgets its oldest part."""

from __future__ import annotations

import numpy as np

from pyinstrument_gpu import analysis
from pyinstrument_gpu.core.run import Run

UNEXPLAINED = "unexplained"


class SlowSums:
    """Counts each slow step of one run once, in the look that first has it.

    Attributes:
        count: how many there were.
        excess_ns: what each cause has added to them, by its name, and what none explains.
    """

    def __init__(self) -> None:
        self.count = 0
        self.excess_ns: dict[str, int] = {}
        self._last_index = -1

    def add(self, run: Run) -> None:
        """Add those of the run as it is now. Costs the analysis of slow steps."""
        found = analysis.of(run).excess
        new = found.steps["index"] > self._last_index
        self.count += int(np.count_nonzero(new))
        names = [*(one.name for one in found.causes), UNEXPLAINED]
        times_ns = [*found.parts_ns[:, new], found.unexplained_ns[new]]
        for name, some_ns in zip(names, times_ns, strict=True):
            if some_ns.any():
                self.excess_ns[name] = self.excess_ns.get(name, 0) + int(some_ns.sum())
        self._last_index = max(self._last_index, int(run.steps.closed["index"].max(initial=-1)))
