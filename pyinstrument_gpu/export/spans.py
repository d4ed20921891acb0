# SPDX-License-Identifier: Apache-2.0
"""The spans of a run, and its passes through modules, as tables: a row for each, in the order in
which the run has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.aspects.modules.data import ModulePass
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.export.table import Column, Part, on_axis, slices

_TIMES = ("host_begin_ns", "host_end_ns", "device_begin_ns", "device_end_ns")

_SPANS = (
    *("phase", "path", "step", "depth", "thread", "thread_name"),
    *("device", "stream", "stream_name", *_TIMES, "device_ns", "blocked_ns", "flags"),
)
"""The columns of `SPAN_DTYPE`, with names for the numbers of phases and paths, and beside those of
threads and streams; and the exact stream time."""

_MODULES = (
    *("module", "kind", "path", "step", "depth", "thread", "thread_name"),
    *("stream", "stream_name", *_TIMES),
)
"""The same of `MODULE_SPAN_DTYPE`."""

_NUMBERS_OF_NAMES = {"thread_name": "thread", "stream_name": "stream"}


def spans(run: Run, offset_ns: int) -> Iterator[Part]:
    texts = _texts(run) | {"phase": run.names}
    for rows in slices(len(run.spans)):
        more = {"device_ns": run.span_device_ns[rows]}
        yield _part(_SPANS, run.spans[rows], texts, more, offset_ns)


def modules(run: Run, offset_ns: int) -> Iterator[Part]:
    kinds = [kind.name.lower() for kind in ModulePass]
    texts = _texts(run) | {"module": run.module_names, "kind": kinds}
    for rows in slices(len(run.module_spans)):
        yield _part(_MODULES, run.module_spans[rows], texts, {}, offset_ns)


def _texts(run: Run) -> dict[str, Sequence[str]]:
    return {
        "path": run.paths,
        "thread_name": [thread.name for thread in run.threads],
        "stream_name": [stream.name for stream in run.streams],
    }


def _part(
    names: Sequence[str],
    records: NDArray[np.void],
    texts: Mapping[str, Sequence[str]],
    more: Mapping[str, NDArray[np.int64]],
    offset_ns: int,
) -> Part:
    part = {}
    for name in names:
        values = more[name] if name in more else records[_NUMBERS_OF_NAMES.get(name, name)]
        if name in _TIMES:
            values = on_axis(values, offset_ns)
        part[name] = Column(values, texts.get(name))
    return part
