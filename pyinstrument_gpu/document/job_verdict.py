# SPDX-License-Identifier: Apache-2.0
"""The verdict on a job of ranks: which rank the others wait for, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from pyinstrument_gpu.analysis.job.findings import Pattern, Stragglers
from pyinstrument_gpu.document.job_findings import JobFinding, StallOfRank
from pyinstrument_gpu.document.job_ranks import NAMING, where_text
from pyinstrument_gpu.document.words import counted, duration, small_percent
from pyinstrument_gpu.model.job_data import JobData


def job_verdict(
    job: JobData,
    stragglers: Stragglers,
    findings: Sequence[JobFinding],
    stalls: Sequence[StallOfRank],
) -> str:
    """What stopped, if anything did, and who is waited for. Of ranks that are missing nothing is
    said but that they are."""
    if not job.ranks:
        return f"No run of the {counted(job.world_size, 'rank')} could be read."
    sentence = _who(stragglers)
    if job.missing:
        missing = counted(len(job.missing), "rank")
        sentence += f"; of {missing} that {'is' if len(job.missing) == 1 else 'are'} missing, "
        sentence += "nothing is known"
    if any(not stall.has_ended for stall in stalls):
        first = findings[0]  # on these stalls
        return f"{first.about[:1].upper()}{first.about[1:]}: {first.evidence}. {sentence}."
    return f"{sentence}."


def _who(stragglers: Stragglers) -> str:
    found, pattern = stragglers.straggler, stragglers.pattern
    if pattern is Pattern.UNKNOWN or (found is None and pattern in NAMING):
        reason = (stragglers.reason or "the runs do not say it").rstrip(".")
        return f"Which rank is late can't be told: {reason}"
    if found is not None:
        when = "" if found.pattern is Pattern.ALWAYS else " in some steps"
        steps = f"{found.steps:,} of {counted(stragglers.steps, 'step')}"
        later = f"{duration(found.lateness_ns)} after the next rank on average"
        text = f"Rank {found.rank} is waited for{when}: it comes last in {steps}, {later}, "
        if found.path is None:
            text += "and no single phase is the reason"
        else:
            text += f"{small_percent(found.path_share, 1)} of that {where_text(found.path)}"
        return text + _loss(stragglers)
    if pattern is Pattern.IN_TURN:
        return f"Ranks are waited for in turn, and none can be named{_loss(stragglers)}"
    text = f"No rank stands out in {counted(stragglers.steps, 'step')}{_loss(stragglers)}"
    if not stragglers.is_by_arrivals:
        # The others' waiting looks like work there.
        text += "; one that is slower in phases with collectives alone could not be seen"
    return text


def _loss(stragglers: Stragglers) -> str:
    if stragglers.loss_share is None or stragglers.loss_share <= 0:
        return ""
    share = small_percent(stragglers.loss_share, 1)
    return f"; differences between ranks cost {share} of the step"
