# SPDX-License-Identifier: Apache-2.0
"""Runs made by hand or at random, to export."""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pyinstrument_gpu.aspects.modules.data import MODULE_SPAN_DTYPE, ModulePass
from pyinstrument_gpu.core.record import OpenPhase, Thread, named_streams
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite

STREAMS = named_streams([*((0, handle) for handle in range(2, 16)), (1, 0), (1, 7)])
"""Of device 0 the default stream and 13 more, with their numbers; of device 1 that and another."""

ANCHOR = {"run_ns": 0, "monotonic_ns": 7, "realtime_ns": 1_700_000_000_000_000_000}


def run_of(spans: Any, names: Sequence[str] = ("forward", "attention"), **parts: Any) -> Run:
    """A run in which the second name, if there is one, is a path inside the first."""
    made: dict[str, Any] = {
        "names": names,
        "path_parents": [-1, 0, *[-1] * len(names)][: len(names)],
        "path_names": range(len(names)),
        "threads": [Thread(11, "MainThread"), Thread(12, "")],
        "streams": STREAMS,
        "spans": np.array(list(spans), SPAN_DTYPE),
    }
    return Run(**(made | parts))


def rank(number: int, start_ns: int, spans: Any = (), **parts: Any) -> Run:
    """A run of a rank that began so many ns after the first."""
    anchor = ANCHOR | {"realtime_ns": ANCHOR["realtime_ns"] + start_ns}
    return run_of(spans, environment={"rank": number, "host": "box", "anchor": anchor}, **parts)


def syncs_of(run: Run) -> Syncs:
    """Four waits of a run: two priced ones in its first phase and in none, one that is allowed, and
    on its second thread one without a price."""
    sites = (
        SyncSite("/home/a, b/train.py", 57, "train", SyncKind.ITEM, False),
        SyncSite("/home/a, b/data.py", 7, "<lambda>", SyncKind.H2D_PAGEABLE, True),
    )
    events = [
        (100, 50, 4, 0, 0, 3, 0),
        (200, 1_001, 4, 0, -1, -1, 0),
        (2_000, 5, 1 << 40, 1, 0, 4, 0),
        (150, -1, 8, 0, len(run.paths) - 1, 3, 1),
    ]
    return Syncs(sites, np.array(events, SYNC_DTYPE), ((0, 5_000),))


def written(write: Callable[..., None], *runs: Run, **options: Any) -> bytes:
    """What an exporter writes. It has to count every span once."""
    done: list[int] = []
    sink = io.BytesIO()
    write(runs, sink, advance=done.append, **options)
    assert sum(done) == sum(len(run.spans) for run in runs)
    return sink.getvalue()


_TIMES = st.integers(0, 30) | st.integers(0, 2**53)
_INTERVALS = st.tuples(_TIMES, _TIMES).map(lambda times: (min(times), max(times)))
_NAMES = st.text(st.characters(), min_size=1, max_size=256)
_MISSING = (-1, -1)


@st.composite
def runs(draw: st.DrawFn, with_modules: bool = False) -> Run:
    """Any run: names of all characters, times and depths in any order, device times or none, and
    passes through modules if asked for."""
    names = draw(st.lists(_NAMES, min_size=1, max_size=5, unique=True))
    parents = [draw(st.integers(-1, i - 1)) for i in range(len(names))]
    threads = draw(st.lists(st.builds(Thread, st.integers(1, 99), _NAMES), min_size=1, max_size=3))
    paths, thread_ids = st.integers(0, len(names) - 1), st.integers(0, len(threads) - 1)
    step_ids, depths = st.integers(-1, 3), st.integers(0, 3)

    def span() -> tuple[int, ...]:
        path, on_device = draw(paths), draw(st.just(_MISSING) | _INTERVALS)
        number = draw(st.integers(0, len(STREAMS) - 1))
        stream = _MISSING if on_device == _MISSING else (STREAMS[number].device, number)
        where = (path, path, draw(step_ids), draw(depths), draw(thread_ids), *stream)
        return (*where, *draw(_INTERVALS), *on_device, draw(st.just(-1) | _TIMES), 1)

    def step(index: int) -> tuple[Any, ...]:
        samples = draw(st.sampled_from([math.nan, 0.0, 32.0, 0.1]))
        return (
            index,
            *draw(_INTERVALS),
            samples,
            draw(depths),
            draw(st.booleans()),
            draw(thread_ids),
        )

    def module_span() -> tuple[int, ...]:
        on_device = draw(st.just(_MISSING) | _INTERVALS)
        stream = -1 if on_device == _MISSING else draw(st.integers(0, len(STREAMS) - 1))
        what = (draw(st.integers(0, len(module_names) - 1)), draw(st.sampled_from(ModulePass)))
        where = (draw(step_ids), draw(thread_ids), draw(st.just(-1) | paths), draw(depths))
        return (*draw(_INTERVALS), *what, *where, stream, *on_device)

    module_names = draw(st.lists(_NAMES, min_size=1, max_size=3, unique=True))
    module_spans = [module_span() for _ in range(draw(st.integers(0, 8)) if with_modules else 0)]
    spans = [span() for _ in range(draw(st.integers(0, 12)))]
    steps = [step(index) for index in range(draw(st.integers(0, 4)))]
    run = run_of(
        spans,
        names,
        path_parents=parents,
        threads=threads,
        steps=Steps(np.array(steps, STEP_DTYPE)),
        duration_ns=draw(_TIMES),
        module_names=module_names if with_modules else (),
        module_spans=np.array(module_spans, MODULE_SPAN_DTYPE),
    )
    run.open_phases = tuple(
        OpenPhase(
            run.paths[draw(paths)], draw(thread_ids), draw(_TIMES), draw(step_ids), draw(depths)
        )
        for _ in range(draw(st.integers(0, 2)))
    )
    return run


def with_lengths_on_device(run: Run) -> Run:
    """Make every range of a stream at least 1 ns long: exports move what meets one without
    length."""
    for spans in (run.spans, run.module_spans):
        has_no_length = spans["device_end_ns"] == spans["device_begin_ns"]
        spans["device_end_ns"] += has_no_length & (spans["device_begin_ns"] >= 0)
    return run
