# SPDX-License-Identifier: Apache-2.0
"""What takes far longer than usual, in words, long before the watchdog calls it a hang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.stalls.data import Quiet
from pyinstrument_gpu.core.steps import Step
from pyinstrument_gpu.parts.words import duration, time_text

_LEAST_NS = 2 * 10**9
_TIMES_MEDIAN = 10


def overdue_words(
    last: Step | None,
    step_ns: NDArray[np.int64],
    now_ns: int,
    quiet: Quiet | None,
    environment: Mapping[str, Any],
) -> str | None:
    """For how long the step has been open, or none has begun, compared to what is usual, and where
    the main thread was; None where that is not worth a word.

    Args:
        last: the step that is open, or else the last one; None before the first.
        step_ns: how long steps took.
        now_ns: until when, since the run began.
        quiet: where the main thread was seen.
    """
    is_open = last is not None and last.end_ns < 0
    since_ns = 0 if last is None else last.begin_ns if is_open else last.end_ns
    median_ns = int(np.median(step_ns)) if len(step_ns) else 0
    taken_ns = now_ns - since_ns
    if taken_ns < max(_LEAST_NS, _TIMES_MEDIAN * median_ns):
        return None
    taken = time_text(taken_ns)
    text = f"the step has taken {taken} so far" if is_open else f"none has begun for {taken}"
    text += usual_words(step_ns)
    if quiet is None or quiet.seen_ns < since_ns:
        return text
    folders = [environment[key] for key in ("cwd", "program_folder") if environment.get(key)]
    line = quiet.source.seen_from(folders)
    where = f"at {line}"
    if quiet.library is not None and not quiet.library.startswith("<"):  # not in an import
        where = f"in {quiet.library}, called at {line}"
    elif not quiet.function.startswith("<"):
        where = f"in {quiet.function} at {line}"
    seen = time_text(now_ns - quiet.seen_ns)
    return f"{text}; {seen} ago the main thread was {where}"


def usual_words(step_ns: NDArray[np.int64]) -> str:
    """What steps usually take, as the end of a sentence; nothing where no step is known."""
    return f"; a step takes {duration(np.median(step_ns))} at the median" if len(step_ns) else ""
