# SPDX-License-Identifier: Apache-2.0
"""The host's own time in optimizers, which a fused or foreach implementation saves."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.core.statistics import Scope

MIN_SHARE = 0.01
"""The least share of the step that an optimizer takes on the host to be named."""


def optimizer_host_time(case: Case) -> Iterator[Finding]:
    """Of programs that time the device: without one, the optimizer computes on the host itself.

    No more can be saved than the host takes, and than the device is not busy for.
    """
    run, found = case.run, case.found
    idle_ns = max(0.0, case.step_ns - (found.savings.busy_ns or 0.0))
    for path in found.bottlenecks(Scope.STEP):
        name = run.names[run.path_names[path]]
        host_ns = case.computing_ns(path)
        if name.rstrip("0123456789 ") != "optimizer" or host_ns < MIN_SHARE * case.step_ns:
            continue
        saving = case.saving(Change.LAUNCHES, path=path)
        if saving is None or not case.is_listed(saving):
            yield Finding(
                "use a fused or foreach optimizer",
                None,
                Worth(0.0, min(host_ns, idle_ns), case.step_ns),
                f"{run.paths[path]} takes {ms(host_ns)} of the host per step",
                "Optimizer(fused=True)",
            )
