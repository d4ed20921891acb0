# SPDX-License-Identifier: Apache-2.0
"""A larger batch: what the host takes for launches it takes for any batch.

Launch-bound phases alone are sure to be cheaper by the sample. What the device takes for a larger
batch can't be told from a run with one size.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyinstrument_gpu.analysis.bottleneck import Bottleneck
from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth
from pyinstrument_gpu.core.statistics import Scope


def batch_size(case: Case) -> Iterator[Finding]:
    """Per sample, of a batch twice as large. Of programs that time the device."""
    judged = case.found.bottlenecks(Scope.STEP)
    kinds = {one.kind for one in judged.values()} - {Bottleneck.UNKNOWN}
    launches = [path for path, one in judged.items() if one.kind == Bottleneck.LAUNCH]
    if not kinds:
        return
    if not launches:
        yield Finding("double the batch size", None, None, "no phase is launch-bound")
        return
    fixed_ns = sum(case.computing_ns(path) for path in launches)
    names = ", ".join(case.run.paths[path] for path in launches[:3])
    yield Finding(
        "double the batch size",
        None,
        Worth(0.0, fixed_ns / 2, case.step_ns),
        f"by the sample: launch-bound phases ({names}) take {ms(fixed_ns)} of the host per step, "
        "the same for any size as far as they launch; what the device gains is open",
    )
