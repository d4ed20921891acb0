# SPDX-License-Identifier: Apache-2.0
"""Rules on what makes the host wait: values read twice, copies to the device, and logging."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.analysis.correlation_points import CALL_NS, COPY_NS_PER_BYTE
from pyinstrument_gpu.analysis.inference import welch
from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.rules.case import READS, Case, Worth, guidance, worth_of
from pyinstrument_gpu.analysis.rules.occasions import MAX_SHARE
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.core.arrays import distinct
from pyinstrument_gpu.core.sync_kind import COPY_KINDS, SyncKind
from pyinstrument_gpu.parts.words import duration

SMALL_BYTES = 1 << 20
"""The most that a tensor holds which a program makes anew in each step."""
EVERY_STEP = 0.9
"""The share of the steps, or of the copies of a site, that is as good as all."""
_PIN = "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"
LOG_KINDS = (SyncKind.PRINT, SyncKind.FORMAT, SyncKind.TOLIST)
MIN_STEPS = 5
"""How many steps there have to be with logging, and without."""
_ERRORS = 2
"""By how many standard errors the difference of the means may be off."""


def repeated_reads(case: Case) -> Iterator[Finding]:
    """Yield values that are read twice in a step, and what the second read costs.

    The first read of a step waits until the device is done. A second one behind it waits for
    nothing, whatever it reads, so its price is that of the call. A site counts if half of its
    reads that follow another read of the step take no longer than such a call does.
    """
    waits = case.waits
    reads = waits[case.run.syncs.of_kinds(waits, READS)]
    follows = reads["step"][1:] == reads["step"][:-1]
    before, later = reads[:-1][follows], reads[1:][follows]
    call_ns = CALL_NS + COPY_NS_PER_BYTE * later["bytes"].astype(np.int64)
    drained = [
        int(site)
        for site in distinct(later["site"])
        if np.median((later["duration_ns"] - call_ns)[later["site"] == site]) <= 0
    ]
    if not drained:
        return
    chosen = np.isin(later["site"], drained)
    calls = np.count_nonzero(chosen) / len(case.steps)
    time_ns = float(later["duration_ns"][chosen].sum()) / len(case.steps)
    first = case.line(int(before["site"][chosen][0]))
    yield guidance(
        "read each value once",
        "5-10 %",
        *Worth(0.0, time_ns, case.step_ns),
        f"{calls:.2f} reads per step take {duration(time_ns)}: {case.lines(drained)} after "
        f"{first}, which has already waited",
    )


def blocking_copies(case: Case) -> Iterator[Finding]:
    """Yield advice on all copies that make the host wait, if some of them are in steps."""
    saving = case.saving(Change.COPIES) or case.saving(Change.COPIES, is_inside=False)
    in_steps = case.run.syncs.of_kinds(case.waits, COPY_KINDS)
    if saving is None or case.is_listed(saving) or not in_steps.any():
        return
    yield guidance(
        "pin memory and copy with non_blocking",
        "3-5 %",
        *worth_of(saving, case.found.savings),
        f"{saving.calls:.2f} copies per step make the host wait for {duration(saving.time_ns)}",
        _PIN,
    )


def small_tensors(case: Case) -> Iterator[Finding]:
    """Yield small copies of one size in every step, apart from the largest, which is the batch, and
    those on its lines. Where their tensors come from is not known."""
    copies = case.waits[case.run.syncs.of_kinds(case.waits, COPY_KINDS)]
    if not len(copies):
        return
    batch = int(np.argmax(np.bincount(copies["site"], copies["bytes"])))
    found = [
        int(site)
        for site in distinct(copies["site"])
        if not _is_beside(case, int(site), batch)
        and _is_one_size(copies[copies["site"] == site], len(case.steps))
    ]
    if not found:
        return
    chosen = copies[np.isin(copies["site"], found)]
    time_ns = float(chosen["duration_ns"].sum()) / len(case.steps)
    size = int(chosen["bytes"].sum()) / len(case.steps)
    yield guidance(
        "make tensors on the device",
        "2-4 %",
        *Worth(0.0, time_ns, case.step_ns),
        f"{len(chosen) / len(case.steps):.2f} small copies per step, {size:,.0f} bytes of the same "
        f"size each time, take {duration(time_ns)}: {case.lines(found)}",
        "if they are not loaded data, make them with device=device, once if they don't change",
    )


def _is_beside(case: Case, site: int, batch: int) -> bool:
    """Return whether a site is the batch's, or on its line or the next to it: its labels."""
    one, other = case.run.syncs.sites[site], case.run.syncs.sites[batch]
    is_next = one.file == other.file and abs(one.line - other.line) <= 1
    return site == batch or is_next


def _is_one_size(copies: NDArray[np.void], steps: int) -> bool:
    """Return whether a site copies as much in every step, and little."""
    sizes, counts = np.unique(copies["bytes"], return_counts=True)
    is_usual = counts.max() >= EVERY_STEP * len(copies)
    in_steps = len(distinct(copies["step"]))
    return bool(is_usual and sizes.max() <= SMALL_BYTES and in_steps >= EVERY_STEP * steps)


def evaluation_copies(case: Case) -> Iterator[Finding]:
    """Yield the same for evaluations between steps. Where steps copy as well, it is only known what
    all copies save together."""
    saving = case.saving(Change.COPIES, is_inside=False)
    found = case.timeline.evaluations()
    if saving is None or case.is_listed(saving) or not len(found):
        return
    if case.timeline.may_be_rollouts():
        return
    copies = case.all_waits[case.run.syncs.of_kinds(case.all_waits, COPY_KINDS)]
    edges_ns = np.sort(found.begins_ns), np.sort(found.ends_ns)
    copies = copies[(interval_at(*edges_ns, copies["begin_ns"]) >= 0) & (copies["step"] < 0)]
    if not len(copies):
        return
    time_ns, worth = int(copies["duration_ns"].sum()), worth_of(saving, case.found.savings)
    if case.run.syncs.of_kinds(case.waits, COPY_KINDS).any():
        high_ns = min(worth.high_ns, time_ns / len(case.steps))
        worth = worth._replace(low_ns=0.0, high_ns=high_ns)
    yield guidance(
        "pin memory and copy with non_blocking in evaluations",
        None,
        *worth,
        f"{len(copies) / len(found):,.1f} copies of an evaluation make the host wait for "
        f"{duration(time_ns / len(found))}: "
        f"{case.lines(distinct(copies['site']).tolist())}",
        _PIN,
    )


def logging_steps(case: Case) -> Iterator[Finding]:
    """Yield printing and logging in steps: the waits, and what steps that log compute in addition.

    A step logs if a tensor is printed, formatted or made a list in it, or if a line reads a value
    that does so in a few steps only.
    """
    reads = case.waits[case.run.syncs.of_kinds(case.waits, READS)]
    is_log = case.run.syncs.of_kinds(reads, LOG_KINDS)
    for site in distinct(reads["site"]):
        of_site = reads["site"] == site
        is_log |= of_site & (len(distinct(reads["step"][of_site])) <= MAX_SHARE * len(case.steps))
    logs = reads[is_log]
    sites = distinct(logs["site"]).tolist()
    rows = [case.saving(Change.SYNC, site=site) for site in sites]
    known = [row for row in rows if row is not None and not case.is_listed(row)]
    if not sites or not known:
        return
    found = case.found.savings
    worths = [worth_of(row, found) for row in known]
    is_logging = np.isin(case.steps["index"], logs["step"])
    low_ns, high_ns, host = _host_time(case, is_logging)
    yield guidance(
        "print and log every N steps",
        "1-2 %",
        # One wait may take the place of another, so their savings do not add up, except at most.
        *Worth(
            max(worth.low_ns for worth in worths) + low_ns,
            sum(worth.high_ns for worth in worths) + high_ns,
            found.step_ns,
        ),
        f"{np.count_nonzero(is_logging):,} of {len(case.steps):,} steps log, {case.lines(sites)}: "
        f"{duration(sum(row.time_ns for row in known))} of waits per step, {host}",
    )


def _host_time(case: Case, is_logging: NDArray[np.bool_]) -> tuple[float, float, str]:
    """Return what logging computes on the host outside of phases, per step, and that in words."""
    few = min(np.count_nonzero(is_logging), np.count_nonzero(~is_logging))
    entries = case.found.time_budget.entries
    entries = entries[(entries["path"] < 0) & (entries["blocked_ns"] >= 0)]
    own_ns = np.zeros(len(case.steps))
    place = np.searchsorted(case.steps["index"], entries["step"])
    own_ns[place] = entries["host_ns"] - entries["blocked_ns"]
    if few < MIN_STEPS:
        return 0.0, 0.0, "and too few steps differ to tell what it computes"
    with_ns, without_ns = own_ns[is_logging], own_ns[~is_logging]
    share = len(with_ns) / len(own_ns)
    more_ns = float(with_ns.mean() - without_ns.mean())
    error_ns = _ERRORS * (welch(without_ns, with_ns)[0] or 0.0)
    low_ns, high_ns = (share * max(more_ns + error, 0.0) for error in (-error_ns, error_ns))
    return low_ns, high_ns, f"and {duration(share * max(more_ns, 0.0))} of the host's own time"
