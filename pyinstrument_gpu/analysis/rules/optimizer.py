# SPDX-License-Identifier: Apache-2.0
"""The host's own time in optimizers, which a fused or foreach implementation saves."""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth, worth_of
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.model.statistics import Scope

MIN_SHARE = 0.01
"""The least share of the step that an optimizer takes on the host to be named."""
_ADVICE, _EDIT = "use a fused or foreach optimizer", "Optimizer(fused=True)"


def optimizer_host_time(case: Case) -> Iterator[Finding]:
    """Of programs that time the device: without one, the optimizer computes on the host itself."""
    run, found = case.run, case.found
    for path, bottleneck in found.bottlenecks(Scope.STEP).items():
        name = run.names[run.path_names[path]]
        host_ns = case.computing_ns(path)
        if name.rstrip("0123456789 ") != "optimizer" or host_ns < MIN_SHARE * case.step_ns:
            continue
        takes = f"{run.paths[path]} takes {ms(host_ns)} of the host per step"
        saving = case.saving(Change.LAUNCHES, path=path)
        if saving is not None:
            if not case.is_listed(saving):
                yield Finding(_ADVICE, None, worth_of(saving, found.savings), takes, _EDIT)
        elif bottleneck.kind == Bottleneck.DEVICE:
            why = f"{takes}, and the device is still at earlier work then"
            yield Finding(_ADVICE, None, Worth(0.0, 0.0, case.step_ns), why)
        else:
            why = f"{takes}, and events do not say whether the device waits for it"
            yield Finding(_ADVICE, None, None, why)
