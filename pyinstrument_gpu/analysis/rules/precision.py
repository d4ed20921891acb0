# SPDX-License-Identifier: Apache-2.0
"""AMP and TF32 make the device's work shorter, which is worth something only if that is the limit.

Where it is proven to be, the report's advice says so. A step can't be shorter than what the host
computes in it, so if no phase is device-bound, the time that the host is blocked is a limit.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth
from pyinstrument_gpu.core.statistics import Scope

_ADVICE = "use AMP or TF32"


def precision(case: Case) -> Iterator[Finding]:
    found = case.found
    is_timed = bool((case.run.span_device_ns >= 0).any())
    _, means = found.ledger.means()
    if not is_timed or not means or any(one.saving is None for one in found.advice):
        return
    judged = {one.kind for one in found.bottlenecks(Scope.STEP).values()} - {Bottleneck.UNKNOWN}
    blocked_ns = [one.blocked_ns for one in means.values() if one.blocked_ns is not None]
    if judged and Bottleneck.DEVICE not in judged and len(blocked_ns) == len(means):
        waits = f"the host waits {ms(sum(blocked_ns))} per step for the device"
        worth = Worth(0.0, sum(blocked_ns), case.step_ns)
        yield Finding(_ADVICE, None, worth, f"no phase is device-bound, and {waits}")
        return
    busy_ns, step_ns = found.savings.busy_ns, found.savings.step_ns
    if found.premises.doubt is not None:
        why = f"the device may wait {found.premises.doubt} where it looks busy"
    elif busy_ns is None:
        why = "how long the device was busy is not known"
    else:
        why = f"the device is proven to be busy for {busy_ns / step_ns:.0%} of the time only"
    yield Finding(_ADVICE, None, None, why)
