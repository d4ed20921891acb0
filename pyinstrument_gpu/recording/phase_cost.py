# SPDX-License-Identifier: Apache-2.0
"""What a phase costs on this machine, beside `nullcontext` and PyTorch's `record_function`."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from time import monotonic

from pyinstrument_gpu.errors import RecordingError
from pyinstrument_gpu.native import DISABLED, require_native
from pyinstrument_gpu.recording.recording import record
from pyinstrument_gpu.recording.self_overhead import empty_loop, per_use_ns, phase_loop
from pyinstrument_gpu.report.overhead import PhaseCost

ROUNDS = 100
_SECONDS = 6.0
# So few that even the slowest loop often ends before another program takes the core, and that they
# neither wake the harvester nor fill the ring.
_USES = 300

_EMPTY_LOOP = "empty loop"
_RECORDING = "gpu_phase, recording"
_NOT_RECORDING = "gpu_phase, not recording"
_NULLCONTEXT = "contextlib.nullcontext"
_RECORD_FUNCTION = "torch.profiler.record_function, profiler off"


def measure_phase_costs(rounds: int = ROUNDS) -> list[PhaseCost]:
    """What a `with` block costs: a phase that is recorded, then a phase while nothing is recorded,
    then others. Raises RecordingError where nothing can be recorded.

    Each round measures all of them in turn, so that what disturbs one disturbs all. No round begins
    later than six seconds after the first.
    """
    require_native()
    if DISABLED:
        raise RecordingError(
            "PYINSTRUMENT_GPU in the environment turns recording off: unset it to measure its cost"
        )
    loops: dict[str, Callable[[int], object]] = {
        _EMPTY_LOOP: empty_loop,
        _NOT_RECORDING: phase_loop,
        _NULLCONTEXT: _nullcontext_loop,
    }
    missing = None
    try:
        loops[_RECORD_FUNCTION] = _record_function_loop()
    except Exception as error:  # whatever another package may raise at its import
        missing = _why_missing(error)
    times_ns = _measure(loops, rounds)
    loop_ns = times_ns.pop(_EMPTY_LOOP)
    best_loop_ns, median_loop_ns = min(loop_ns), statistics.median(loop_ns)
    costs = [
        PhaseCost(
            name,
            is_ours=name in (_RECORDING, _NOT_RECORDING),
            best_ns=min(uses_ns) - best_loop_ns,
            median_ns=statistics.median(uses_ns) - median_loop_ns,
            rounds=len(uses_ns),
        )
        for name, uses_ns in times_ns.items()
    ]
    if missing is not None:
        costs.append(PhaseCost(_RECORD_FUNCTION, is_ours=False, missing=missing))
    return costs


def _measure(loops: dict[str, Callable[[int], object]], rounds: int) -> dict[str, list[float]]:
    """What a use took in each round, the loop included: while recording, then each of the loops."""
    times_ns: dict[str, list[float]] = {name: [] for name in (_RECORDING, *loops)}
    deadline_s = monotonic() + _SECONDS
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            if number and monotonic() >= deadline_s:
                break
            with record(device_timing=False):
                times_ns[_RECORDING].append(_warm_ns(phase_loop))
            for name, loop in loops.items():
                times_ns[name].append(_warm_ns(loop))
    finally:
        gc.enable()
    return times_ns


def _warm_ns(loop: Callable[[int], object]) -> float:
    # The first time brings into the caches what is new, in a recording above all.
    loop(_USES)
    return per_use_ns(loop, _USES)


def _nullcontext_loop(uses: int) -> None:
    context = nullcontext()
    for _ in range(uses):
        with context:
            pass


def _record_function_loop() -> Callable[[int], object]:
    from torch.profiler import record_function

    def loop(uses: int) -> None:
        for _ in range(uses):
            with record_function("data"):
                pass

    return loop


def _why_missing(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"{error.name} is not installed"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
