# SPDX-License-Identifier: Apache-2.0
"""The table of all that a phase is compared with.

Each is used as its own documentation says; what is internal or private says so. A further one is a
function that sets it up, and a line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any

from benchmarks import ours
from benchmarks.peer import History, Peer, PeerMissing
from benchmarks.way import DEPTH, Way, empty, fresh, kept

# Less than half a ring, so that one of our batches neither wakes the harvester nor fills the ring.
_USES = 3999
# Of what takes microseconds.
_FEW_USES = 399
# Of the C loop that folds statistics: whole rings.
_WHOLE_RINGS = 2 * 8192

_MANY_SPANS = 10_000_000


# --- what Python itself has ---


class _TwoMethods:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


@contextmanager
def _generator(name: str) -> Iterator[None]:
    yield


def _same(manager: AbstractContextManager[Any]) -> Way:
    return kept(lambda name: manager)


# --- the recorder in C ---


def _c_loop(statistics: bool) -> AbstractContextManager[Way]:
    try:
        from _phase_loop import PhaseLoop  # type: ignore[import-not-found]
    except ModuleNotFoundError as error:
        raise PeerMissing("it is built with this project's tests, and never installed") from error
    loop = PhaseLoop(statistics=statistics)
    return nullcontext(Way(loop.run, lambda uses: loop.run(uses, DEPTH), None, in_c=True))


# --- NVTX ---


def _nvtx_annotate(template: Callable[..., Way]) -> AbstractContextManager[Way]:
    import nvtx

    return nullcontext(template(nvtx.annotate))


def _nvtx_domain() -> AbstractContextManager[Way]:
    import nvtx

    domain = nvtx.get_domain("overhead")
    x, a, b, c = (domain.get_event_attributes(message=name) for name in ("x", "a", "b", "c"))
    push, pop = domain.push_range, domain.pop_range

    def flat(uses: int) -> None:
        for _ in range(uses):
            push(x)
            pop()

    def nested(uses: int) -> None:
        for _ in range(uses):
            push(a)
            push(b)
            push(c)
            pop()
            pop()
            pop()

    return nullcontext(Way(flat, nested, None))


# --- PyTorch ---


def _record_function() -> AbstractContextManager[Way]:
    from torch.profiler import record_function

    return nullcontext(fresh(record_function))


def _record_function_profiled() -> AbstractContextManager[Way]:
    from torch.profiler import ProfilerActivity, profile, record_function

    # It would print a line at each start and stop.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    return nullcontext(
        fresh(record_function, batch=partial(profile, activities=[ProfilerActivity.CPU]))
    )


def _record_function_fast() -> AbstractContextManager[Way]:
    from torch._C._profiler import _RecordFunctionFast

    return nullcontext(kept(_RecordFunctionFast))


class _SynchronisedTimer:
    """Waits for the device before it looks at the clock, at both ends, and adds up by name."""

    def __init__(self, synchronize: Callable[[], object]) -> None:
        self._synchronize = synchronize
        self._began = 0.0
        self.elapsed = 0.0

    def start(self) -> None:
        self._synchronize()
        self._began = perf_counter()

    def stop(self) -> None:
        self._synchronize()
        self.elapsed += perf_counter() - self._began

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


def _synchronised_timer() -> AbstractContextManager[Way]:
    import torch

    def no_device() -> None:
        pass

    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else no_device
    timers: dict[str, _SynchronisedTimer] = {}

    def timer(name: str) -> _SynchronisedTimer:
        if name not in timers:
            timers[name] = _SynchronisedTimer(synchronize)
        return timers[name]

    return nullcontext(fresh(timer))


class _EventPair:
    """Two timing events around a block, kept until somebody reads them."""

    def __init__(self, make: Callable[[], Any], pairs: list[tuple[Any, Any]]) -> None:
        self._begin, self._end = make(), make()
        self._pairs = pairs

    def __enter__(self) -> None:
        self._begin.record()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.record()
        self._pairs.append((self._begin, self._end))


def _event_pair() -> AbstractContextManager[Way]:
    import torch

    if not torch.cuda.is_available():
        raise PeerMissing("it needs a GPU that PyTorch can use")
    pairs: list[tuple[Any, Any]] = []
    make = partial(torch.cuda.Event, enable_timing=True)

    def settle() -> None:
        torch.cuda.synchronize()
        pairs.clear()

    return nullcontext(fresh(lambda name: _EventPair(make, pairs), settle=settle))


# --- other packages ---


def _traceml() -> AbstractContextManager[Way]:
    from traceml_ai import trace_step
    from traceml_ai.instrumentation import step_events
    from traceml_ai.utils.timing import timed_region

    if os.environ.get("TRACEML_DISABLED") == "1":
        raise PeerMissing("TRACEML_DISABLED=1 turns it off")

    def settle() -> None:
        # Ends the step without a model, and takes what its sampler takes.
        step_events.complete_step_capture(step_events.begin_step_capture(), 0)
        step_events.drain_step_time_batches()
        step_events.drain_step_memory_events()

    return nullcontext(fresh(timed_region, settle=settle, step=trace_step))


class _NoCupti:
    """Stands for the CUPTI extension, which cannot be loaded without CUDA's libraries."""

    def __init__(self, **_: object) -> None:
        pass

    def initialize(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


@contextmanager
def _resiliency_section() -> Iterator[Way]:
    from nvidia_resiliency_ext.straggler import straggler

    # The detector loads CUPTI even where every section says that it wants none of it.
    original, straggler.CuptiManager = straggler.CuptiManager, _NoCupti
    try:
        straggler.Detector.initialize()
    finally:
        straggler.CuptiManager = original
    try:
        yield fresh(partial(straggler.Detector.detection_section, profile_cuda=False))
    finally:
        straggler.Detector.shutdown()


OURS = Peer(
    'with gpu_phase("x")',
    "records name, nesting, step, thread, begin, end; statistics, history",
    ours.by_name,
    _USES,
    History(_MANY_SPANS, "statistics of all; of the history a million spans by default"),
    is_ours=True,
    in_steps=True,
)
OURS_BY_HANDLE = Peer("with handle", "the same", ours.by_handle, _USES, is_ours=True)
OURS_NOT_RECORDING = Peer(
    "gpu_phase, not recording",
    "less: an NVTX range where a tool is attached",
    ours.not_recording,
    _USES,
    is_ours=True,
)
EMPTY_LOOP = Peer("empty loop", "taken off all others", lambda: nullcontext(empty()), _USES)
C_LOOP = Peer(
    "C loop: begin, end, ring", "less: no Python", partial(_c_loop, statistics=False), _USES
)
C_LOOP_STATISTICS = Peer(
    "C loop: begin, end, ring, statistics",
    "less: no Python; more: the harvester's work too",
    partial(_c_loop, statistics=True),
    _WHOLE_RINGS,
)
NULLCONTEXT = Peer(
    "nullcontext, reused",
    "less: does nothing",
    lambda: nullcontext(_same(contextlib.nullcontext())),
    _USES,
)
RECORD_FUNCTION = Peer(
    "record_function, profiler off",
    "less: records nothing",
    _record_function,
    _FEW_USES,
    in_steps=True,
)
TRACEML = Peer(
    "TraceML timed_region",
    "internal; times by name and step, with a GPU its events too; less: no nesting; its sampler "
    "and its server are not running",
    _traceml,
    _FEW_USES,
    History(1_000_000, "the events of one step, taken at its end; fewer uses: a step of a million"),
    in_steps=True,
)
RESILIENCY = Peer(
    "nvidia-resiliency-ext section",
    "the last durations by name; less: no nesting, no begin and end; its CUPTI is off",
    _resiliency_section,
    _FEW_USES,
    History(1_000_000, "the last 8192 durations of a name; fewer uses, as each takes longer"),
    in_steps=True,
)

PEERS = (
    OURS,
    OURS_BY_HANDLE,
    OURS_NOT_RECORDING,
    EMPTY_LOOP,
    C_LOOP,
    C_LOOP_STATISTICS,
    NULLCONTEXT,
    Peer(
        "Python class, two empty methods",
        "less: does nothing",
        lambda: nullcontext(_same(_TwoMethods())),
        _USES,
    ),
    Peer(
        "@contextmanager, empty",
        "less: does nothing",
        lambda: nullcontext(fresh(_generator)),
        _USES,
    ),
    Peer(
        "nvtx.annotate, new",
        "less: records nothing without a tool",
        partial(_nvtx_annotate, fresh),
        _USES,
        in_steps=True,
    ),
    Peer(
        "nvtx.annotate, reused",
        "less: records nothing without a tool",
        partial(_nvtx_annotate, kept),
        _USES,
    ),
    Peer(
        "nvtx Domain push_range, pop_range",
        "less: records nothing without a tool; stays open after an exception",
        _nvtx_domain,
        _USES,
    ),
    RECORD_FUNCTION,
    Peer(
        "record_function, profiler on",
        "more: operators in it are recorded too; less: for a short window",
        _record_function_profiled,
        _FEW_USES,
        History(200_000, "every event; fewer uses: ten million would take gigabytes"),
        in_steps=True,
    ),
    Peer(
        "_RecordFunctionFast, reused, profiler off",
        "less: records nothing; private",
        _record_function_fast,
        _USES,
    ),
    TRACEML,
    RESILIENCY,
    Peer(
        "synchronised timer, as DeepSpeed and Megatron",
        "less: a sum by name alone; more: waits for the GPU, which without one is nothing",
        _synchronised_timer,
        _USES,
        in_steps=True,
    ),
    Peer(
        "torch.cuda.Event pair",
        "device times alone; less: no nesting, no host times, nobody reads them",
        _event_pair,
        _FEW_USES,
        in_steps=True,
    ),
)
