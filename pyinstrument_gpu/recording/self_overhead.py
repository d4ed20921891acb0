# SPDX-License-Identifier: Apache-2.0
"""What the recorder itself costs, measured in the process that pays for it."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from pyinstrument_gpu.native import native
from pyinstrument_gpu.recording.steps import gpu_steps

_BATCHES = 7
_USES = 300


def measure() -> dict[str, float]:
    """What a phase and a step cost Python code, in nanoseconds: `phase_ns` and `step_ns`.

    A phase is one `with gpu_phase(...)`; a step is one item of `gpu_steps`, without its phase
    "data". Medians of some batches on warm caches, loops taken off, recorded where nobody reads.
    Needs an active recording with NVTX ranges off (with a tool attached they would fill its
    timeline). Takes about two milliseconds.
    """
    with native.Scratch():
        loop_ns = _median_ns(empty_loop)
        phase_ns = max(_median_ns(phase_loop) - loop_ns, 0.0)
        step_ns = max(_median_ns(_step_loop) - loop_ns - phase_ns, 0.0)
    return {"phase_ns": round(phase_ns, 1), "step_ns": round(step_ns, 1)}


def per_use_ns(loop: Callable[[int], object], uses: int) -> float:
    """How many nanoseconds one round of a loop takes."""
    begin_ns = perf_counter_ns()
    loop(uses)
    return (perf_counter_ns() - begin_ns) / uses


def empty_loop(uses: int) -> None:
    for _ in range(uses):
        pass


def phase_loop(uses: int) -> None:
    gpu_phase = native.gpu_phase
    for _ in range(uses):
        with gpu_phase("data"):
            pass


def _step_loop(uses: int) -> None:
    for _ in gpu_steps(range(uses)):
        pass


def _median_ns(loop: Callable[[int], object]) -> float:
    return sorted(per_use_ns(loop, _USES) for _ in range(_BATCHES))[_BATCHES // 2]
