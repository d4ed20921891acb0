# SPDX-License-Identifier: Apache-2.0
"""Rules on the loader: more workers, fewer, none, and those that are started again for each
epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pyinstrument_gpu.analysis.advice import Finding, made_at
from pyinstrument_gpu.analysis.batches import LOADER_PHASES
from pyinstrument_gpu.analysis.contention import waited_for_processor
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.rules.case import Case, Worth, guidance, worth_of
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.core.arrays import durations_ns_of
from pyinstrument_gpu.parts.words import counted, duration

NO_WAIT_SHARE = 0.01
"""The share of the step below which batches wait for the loop."""
_LEAST_STARTS = 2
MIN_BATCHES = 20
"""Fewer say nothing of how long a worker takes."""


def loader_workers(case: Case) -> Iterator[Finding]:
    """Yield how long the loader takes for a batch, and what the loop would wait with more workers.

    The loop takes for a batch what its step takes without what the wait for data is worth.
    """
    saving, loader = case.saving(Change.DATA_WAIT), case.found.batches
    if saving is None:
        return
    worth = worth_of(saving, case.found.savings)
    if (share := case.found.waiting_share) is not None:
        worth = worth._replace(low_ns=share * worth.low_ns, high_ns=share * worth.high_ns)
    if case.found.premises.lacks_cores:
        worth = worth._replace(low_ns=0.0)
    if case.found.workers_may_lose:
        worth = worth._replace(low_ns=0.0, high_ns=0.0)
    takes = f"the host waits for data for {duration(saving.time_ns)} of a step"
    inside = interval_at(case.steps["begin_ns"], case.steps["end_ns"], loader.asked_ns) >= 0
    workers = case.found.premises.loader_workers
    per_step = np.count_nonzero(inside) / len(case.steps)
    if saving.time_ns < NO_WAIT_SHARE * case.step_ns or not per_step:
        evidence = takes
    elif workers is None:
        evidence = f"{takes}; the number of workers is unknown"
    elif (batch_ns := loader.interval_ns if workers else saving.time_ns / per_step) is None:
        evidence = f"{takes}: too little, or too seldom, to tell how fast the loader is"
    else:
        loop_ns = (worth.of_ns - worth.high_ns) / per_step
        evidence = (
            f"a batch takes {duration(batch_ns)} to make, the loop needs one every "
            f"{duration(loop_ns)}"
        )
        evidence += _with_more(case, workers)
    more = ", prefetching or pinned memory" if case.has_device else " or prefetching"
    edit = None
    if (best := _best(case)) is not None and not case.has_device and per_step:
        # The replay knows which room there is on the processors.
        waited = float(per_step) * (1.0 if share is None else share)
        low_ns, high_ns = (waited * ns for ns in best.saved_ns)
        high_ns = min(high_ns, worth.of_ns)
        worth = worth._replace(low_ns=min(low_ns, high_ns), high_ns=high_ns)
        edit = f"DataLoader(num_workers={best.workers}){made_at(case.run, 'loader')}"
    yield guidance(f"use more loader workers{more}", None, *worth, evidence, edit)


class _Best(NamedTuple):
    """The number of workers with which the loop would wait least, and the least and the most that
    this saves of the wait for a batch."""

    workers: int
    saved_ns: tuple[float, float]


def _best(case: Case) -> _Best | None:
    """Return the best of more workers, where a replay explains the run and each end of the range
    of its prediction is a gain."""
    model = case.found.loader_model
    if model is None or not model.workers or not model.explains_run or case.found.is_contended:
        return None
    more = [one for one in case.found.loader_predictions if one.workers > model.workers]
    best = min(more, key=lambda one: one.most_ns, default=None)
    if best is None or best.most_ns >= model.wait_ns:
        return None
    return _Best(best.workers, (model.wait_ns - best.most_ns, model.wait_ns - best.least_ns))


def _with_more(case: Case, workers: int) -> str:
    for one in case.found.loader_predictions:
        if one.workers > workers:
            least, most = duration(one.least_ns), duration(one.most_ns)
            wait = least if least == most else f"{least} to {most}"
            return f"; with {one.workers} it would wait {wait} for a batch"
    return ""


def no_workers(case: Case) -> Iterator[Finding]:
    """Yield what the loop would save if it made its batches itself, where a worker makes one in
    less time than the loop waits for it. Of programs without a GPU, which has nothing to do
    meanwhile.

    The loop makes a batch in no more time than a worker, which has to share the processors with it.
    So this holds where a replay of the workers does not explain the waits, too, if samples of the
    stack say which part of the time in "data" is a wait. Without workers none are started again.
    """
    model = case.found.loader_model
    if model is None or not model.workers or case.run.environment.get("gpus") != []:
        return
    # The rest of the time in "data" is the loop's own work.
    share = case.found.waiting_share
    waits_ns = model.wait_ns * (1.0 if share is None else share)
    saved_ns = waits_ns - float(model.making_ns.mean())
    are_waits = model.explains_run or share is not None
    if len(model.making_ns) < MIN_BATCHES or saved_ns <= 0 or not are_waits or _best(case):
        return
    worth = Worth(saved_ns, saved_ns, model.wait_ns / model.wait_share)
    for again in kept_workers(case):
        low_ns, high_ns = saved_ns + (again.low_ns or 0.0), saved_ns + (again.high_ns or 0.0)
        worth = Worth(low_ns, high_ns, again.of_ns or 0.0, "elapsed time")
    yield guidance(
        "load batches in the loop itself",
        None,
        *worth,
        f"a worker makes a batch in {duration(float(model.making_ns.mean()))}, and the loop waits "
        f"{duration(waits_ns)} for it to be handed over",
        f"DataLoader(num_workers=0){made_at(case.run, 'loader')}",
    )


def fewer_workers(case: Case) -> Iterator[Finding]:
    """Yield what steps waited for a processor where processes that the program started keep these
    busy, its loader has more workers than there are processors, and by their own clocks fewer make
    batches as fast as the loop uses them. All of it may be what the workers take from the loop."""
    found, workers = case.found.contention, case.found.premises.loader_workers
    loaders: Any = case.run.loader
    if found is None or not found.share or not found.is_by_started or found.has_many_others:
        return
    if not found.is_large or not workers or not found.processors or workers <= found.processors:
        return
    if loaders is None or not loaders.loaders:
        return
    loader = loaders.loaders[0]
    needed = math.ceil(loader.needed_ns / case.step_ns) + 1
    if loader.batch_count < MIN_BATCHES or needed >= min(workers, found.processors + 1):
        return
    yield guidance(
        "use fewer loader workers",
        None,
        *Worth(0.0, found.share * case.step_ns, case.step_ns),
        f"{workers} workers share {found.processors} processor{'s' * (found.processors != 1)} with "
        f"the loop, {waited_for_processor(found.share)}, and a worker needs "
        f"{duration(loader.needed_ns)} for a batch",
        f"DataLoader(num_workers={needed}){made_at(case.run, 'loader')}",
    )


def kept_workers(case: Case) -> Iterator[Finding]:
    """Yield what it takes to start and to end the workers of a loader for each loop over it, but
    for the first start and the last end. The wait for the first batch of each is a part of it: for
    how much of that they start is not known."""
    run, loader = case.run, case.found.batches
    is_kept = run.program_facts.loader_persistent
    if not case.found.premises.loader_workers or is_kept is not False:
        return
    _, begin, end = LOADER_PHASES
    starts, ends = (run.spans[run.are_named([name])[run.spans["path"]]] for name in (begin, end))
    starts_ns, ends_ns = (durations_ns_of(spans, "host_") for spans in (starts, ends))
    # Those of another loader can't be told from these.
    are_its_own = len(starts_ns) == np.count_nonzero(loader.is_first)
    if len(starts_ns) < _LEAST_STARTS or not are_its_own or not case.timeline.elapsed_ns:
        return
    first_ns = (loader.given_ns - loader.asked_ns)[loader.is_first]
    again_ns = float(starts_ns[1:].sum() + ends_ns[:-1].sum())
    steps = len(case.steps)
    yield guidance(
        "keep the loader's workers from epoch to epoch",
        None,
        *Worth(
            again_ns / 2 / steps,
            (again_ns + float(first_ns[1:].sum())) / steps,
            case.timeline.elapsed_ns / steps,
            "elapsed time",
        ),
        f"they were started {counted(len(starts_ns), 'time')}, which took {duration(again_ns)} in "
        f"all, and the first batches of {len(first_ns)} loops {duration(float(first_ns.sum()))}",
        f"DataLoader(persistent_workers=True){made_at(case.run, 'loader')}",
    )
