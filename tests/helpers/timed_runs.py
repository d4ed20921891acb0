# SPDX-License-Identifier: Apache-2.0
"""Runs made by hand of which the times are known, to compare."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from pyinstrument_gpu.analysis.contention import READING
from pyinstrument_gpu.aspects.cpu_contention.data import CpuContention
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.core.record import Thread
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.schema import METRIC_DTYPE, SPAN_DTYPE, STEP_DTYPE
from pyinstrument_gpu.core.step_values import TOKENS, WITHOUT_PADDING
from pyinstrument_gpu.core.steps import Steps
from pyinstrument_gpu.core.sync_kind import SyncKind
from pyinstrument_gpu.core.syncs import SYNC_DTYPE, Syncs, SyncSite

MS = 1_000_000


def made_run(
    steps_ns: ArrayLike,
    phases: Mapping[str, ArrayLike] | None = None,
    samples: float = math.nan,
    **environment: Any,
) -> Run:
    """A run of steps of these durations, in which each phase takes its share of the step, of all or
    of each. With a GPU the host waits for it at the end of each step."""
    phases = phases or {"forward": 0.5}
    ends_ns = np.cumsum(np.array(steps_ns, np.int64))
    begins_ns = np.append(0, ends_ns[:-1])
    steps = np.zeros(len(ends_ns), STEP_DTYPE)
    steps["index"] = np.arange(len(ends_ns))
    steps["begin_ns"], steps["end_ns"] = begins_ns, ends_ns
    steps["samples"], steps["items"], steps["complete"] = samples, 1, True
    spans = np.full((len(ends_ns), len(phases)), -1, np.int64).astype(SPAN_DTYPE)
    spans["step"] = steps["index"][:, None]
    spans["path"] = spans["phase"] = np.arange(len(phases))
    spans["flags"] = 1
    spans["thread"] = spans["depth"] = 0
    each = [np.broadcast_to(np.asarray(one), len(ends_ns)) for one in (0.0, *phases.values())]
    shares = np.cumsum(each, axis=0).T
    durations_ns = (ends_ns - begins_ns)[:, None]
    moments_ns = begins_ns[:, None] + (durations_ns * shares).astype(np.int64)
    spans["host_begin_ns"], spans["host_end_ns"] = moments_ns[:, :-1], moments_ns[:, 1:]
    flat = spans.reshape(-1)
    waits = np.zeros(len(ends_ns) if environment.get("gpus") else 0, SYNC_DTYPE)
    waits["begin_ns"], waits["duration_ns"] = (ends_ns[: len(waits)] - 1), 1
    waits["path"], waits["step"] = -1, steps["index"][: len(waits)]
    site = SyncSite("train.py", 7, "train", SyncKind.ITEM, False)
    return Run(
        names=list(phases),
        path_parents=[-1] * len(phases),
        path_names=range(len(phases)),
        threads=[Thread(1, "MainThread")],
        spans=flat,
        span_self_ns=durations_ns_of(flat, "host_"),
        steps=Steps(steps),
        duration_ns=int(ends_ns[-1]),
        environment=environment,
        syncs=Syncs((site,), waits, ((0, int(ends_ns[-1])),)) if len(waits) else None,
    )


def with_waits(run: Run, share: float, processor: CpuContention | None = None) -> Run:
    """The run, in which each step waits for a processor for a share of its time."""
    steps = run.steps.closed
    waits = np.zeros(len(steps), METRIC_DTYPE)
    waits["step"], waits["value"] = steps["index"], share * durations_ns_of(steps)
    run.metric_names, run.metrics, run.cpu_contention = (READING,), waits, processor
    return run


def with_tokens(run: Run, tokens: float, without_padding: float | None = None) -> Run:
    """The run, in which each step has so many tokens."""
    values = [tokens] if without_padding is None else [tokens, without_padding]
    readings = np.zeros((len(values), len(run.steps.closed)), METRIC_DTYPE)
    readings["name"], readings["value"] = np.arange(len(values))[:, None], np.c_[values]
    readings["step"] = run.steps.closed["index"]
    run.metric_names = (TOKENS, WITHOUT_PADDING)[: len(values)]
    run.metrics = readings.reshape(-1)
    return run


def runs_of(*means_ms: float, **options: Any) -> list[Run]:
    """Runs of twenty equal steps."""
    return [made_run([mean * MS] * 20, **options) for mean in means_ms]
