# SPDX-License-Identifier: Apache-2.0
"""The tick of a device's counter is learnt from distances; where those are few it is not known."""

import numpy as np

from tests.helpers.device_program import attached_cuda
from tests.helpers.sync_program import draw, ran


def test_distances_that_are_few_and_alike_are_not_taken_for_a_tick() -> None:
    # On a clock that stands still between the steps' equal parts, all short distances of this
    # program are multiples of 0.67 ms.
    with attached_cuda() as cuda:
        run = ran(draw(145), cuda).run
        handle = cuda.default_stream.handle
        stamps_ns = [r.stamp_ns for r in cuda.records() if r.stream == handle]

    truth_ns = np.sort(np.array(stamps_ns, np.int64))
    begins_ns = run.span_device_clock_ns - run.span_device_clock_ns.min() + truth_ns[0]
    after = np.minimum(np.searchsorted(truth_ns, begins_ns), len(truth_ns) - 1)
    off_ns = np.minimum(
        np.abs(truth_ns[after] - begins_ns), np.abs(truth_ns[np.maximum(after - 1, 0)] - begins_ns)
    )
    assert off_ns.max() <= 2_000
