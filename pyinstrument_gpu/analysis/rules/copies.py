# SPDX-License-Identifier: Apache-2.0
"""Copies to the device that make the host wait: in steps, of small tensors, and in evaluations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from pyinstrument_gpu.analysis.intervals import interval_at
from pyinstrument_gpu.analysis.rules.case import Case, ms
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth, worth_of
from pyinstrument_gpu.analysis.savings import Change
from pyinstrument_gpu.core.distinct import distinct
from pyinstrument_gpu.core.sync_kind import COPY_KINDS

SMALL_BYTES = 1 << 20
"""The most that a tensor holds which a program makes anew in each step."""
EVERY_STEP = 0.9
"""The share of the steps, or of the copies of a site, that is as good as all."""

_PIN = "DataLoader(pin_memory=True) and .to(device, non_blocking=True)"


def blocking_copies(case: Case) -> Iterator[Finding]:
    """All copies that make the host wait, if some of them are in steps."""
    saving = case.saving(Change.COPIES) or case.saving(Change.COPIES, is_inside=False)
    in_steps = case.run.syncs.of_kinds(case.waits, COPY_KINDS)
    if saving is None or case.is_listed(saving) or not in_steps.any():
        return
    yield Finding(
        "pin memory and copy with non_blocking",
        "3-5 %",
        worth_of(saving, case.found.savings),
        f"{saving.calls:.2f} copies per step make the host wait for {ms(saving.time_ns)}",
        _PIN,
    )


def small_tensors(case: Case) -> Iterator[Finding]:
    """Small copies of one size in every step, apart from the largest, which is the batch, and those
    on its lines. Where their tensors come from is not known."""
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
    yield Finding(
        "make tensors on the device",
        "2-4 %",
        Worth(0.0, time_ns, case.step_ns),
        f"{len(chosen) / len(case.steps):.2f} small copies per step, {size:,.0f} bytes of the same "
        f"size each time, take {ms(time_ns)}: {case.lines(found)}",
        "if they are not loaded data, make them with device=device, once if they don't change",
    )


def _is_beside(case: Case, site: int, batch: int) -> bool:
    """Whether a site is the batch's, or on its line or the next to it: its labels."""
    one, other = case.run.syncs.sites[site], case.run.syncs.sites[batch]
    is_next = one.file == other.file and abs(one.line - other.line) <= 1
    return site == batch or is_next


def _is_one_size(copies: NDArray[np.void], steps: int) -> bool:
    """Whether a site copies as much in every step, and little."""
    sizes, counts = np.unique(copies["bytes"], return_counts=True)
    is_usual = counts.max() >= EVERY_STEP * len(copies)
    in_steps = len(distinct(copies["step"]))
    return bool(is_usual and sizes.max() <= SMALL_BYTES and in_steps >= EVERY_STEP * steps)


def evaluation_copies(case: Case) -> Iterator[Finding]:
    """The same in evaluations between steps. Where steps copy as well, it is only known what all
    copies save together."""
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
        worth = replace(worth, low_ns=0.0, high_ns=high_ns)
    yield Finding(
        "pin memory and copy with non_blocking in evaluations",
        None,
        worth,
        f"{len(copies) / len(found):,.1f} copies of an evaluation make the host wait for "
        f"{ms(time_ns / len(found))}: "
        f"{case.lines(distinct(copies['site']).tolist())}",
        _PIN,
    )
