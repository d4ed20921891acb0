# SPDX-License-Identifier: Apache-2.0
"""Printing and logging in steps: the waits, and what steps that log compute more than others.

A step logs if a tensor is printed, formatted or made a list in it, or if a line reads a value that
does so in a few steps only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.rules.case import READS, Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth, worth_of
from pyinstrument_gpu.analysis.rules.occasions import MAX_SHARE
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.analysis.welch import welch
from pyinstrument_gpu.core.distinct import distinct
from pyinstrument_gpu.core.sync_kind import SyncKind

LOG_KINDS = (SyncKind.PRINT, SyncKind.FORMAT, SyncKind.TOLIST)
MIN_STEPS = 5
"""How many steps there have to be with logging, and without."""
_ERRORS = 2
"""By how many standard errors the difference of the means may be off."""


def logging_steps(case: Case) -> Iterator[Finding]:
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
    yield Finding(
        "print and log every N steps",
        "1-2 %",
        # One wait may take the place of another, so their savings do not add up, except at most.
        Worth(
            max(worth.low_ns for worth in worths) + low_ns,
            sum(worth.high_ns for worth in worths) + high_ns,
            found.step_ns,
        ),
        f"{np.count_nonzero(is_logging):,} of {len(case.steps):,} steps log, {case.lines(sites)}: "
        f"{ms(sum(row.time_ns for row in known))} of waits per step, {host}",
    )


def _host_time(case: Case, is_logging: NDArray[np.bool_]) -> tuple[float, float, str]:
    """What logging computes on the host outside of phases, per step, and that in words."""
    few = min(np.count_nonzero(is_logging), np.count_nonzero(~is_logging))
    entries = case.found.ledger.entries
    entries = entries[(entries["path"] < 0) & (entries["blocked_ns"] >= 0)]
    own_ns = np.zeros(len(case.steps))
    place = np.searchsorted(case.steps["index"], entries["step"])
    own_ns[place] = entries["host_ns"] - entries["blocked_ns"]
    if few < MIN_STEPS:
        return 0.0, 0.0, "and what it computes can't be told, because too few steps differ in that"
    with_ns, without_ns = own_ns[is_logging], own_ns[~is_logging]
    share = len(with_ns) / len(own_ns)
    more_ns = float(with_ns.mean() - without_ns.mean())
    error_ns = _ERRORS * (welch(without_ns, with_ns)[0] or 0.0)
    low_ns, high_ns = (share * max(more_ns + error, 0.0) for error in (-error_ns, error_ns))
    return low_ns, high_ns, f"and {ms(share * max(more_ns, 0.0))} of the host's own time"
