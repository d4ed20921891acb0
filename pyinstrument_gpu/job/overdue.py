# SPDX-License-Identifier: Apache-2.0
"""Sentences on what takes far longer than usual, long before the watchdog calls it a hang."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.parts.words import duration, time_text

_LEAST_NS = 2 * 10**9
_TIMES_MEDIAN = 10


def overdue_words(last: Step | None, step_ns: NDArray[np.int64], now_ns: int) -> str | None:
    """Return for how long the step has been open, or none has begun, compared to what is usual;
    None where that is not worth a word.

    Args:
        last: the step that is open, or else the last one; None before the first.
        step_ns: how long steps took.
        now_ns: until when, since the run began.
    """
    is_open = last is not None and last.end_ns < 0
    since_ns = 0 if last is None else last.begin_ns if is_open else last.end_ns
    median_ns = int(np.median(step_ns)) if len(step_ns) else 0
    taken_ns = now_ns - since_ns
    if taken_ns < max(_LEAST_NS, _TIMES_MEDIAN * median_ns):
        return None
    taken = time_text(taken_ns)
    text = f"the step has taken {taken} so far" if is_open else f"none has begun for {taken}"
    return text + usual_words(step_ns)


def usual_words(step_ns: NDArray[np.int64]) -> str:
    """Return what steps usually take, as the end of a sentence; nothing where no step is known."""
    return f"; a step takes {duration(np.median(step_ns))} at the median" if len(step_ns) else ""
