# SPDX-License-Identifier: Apache-2.0
"""The verdict on a job of ranks: which rank the others wait for, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence, Sized

from pyinstrument_gpu.core.rank_numbers import ranks_text
from pyinstrument_gpu.document.job_findings import JobFinding, StallOfRank
from pyinstrument_gpu.document.job_ranks import NAMING, where_text
from pyinstrument_gpu.job.data import JobData
from pyinstrument_gpu.job.findings import Pattern, Stragglers
from pyinstrument_gpu.parts.words import capitalised, counted, duration, small_percent


def job_verdict(
    job: JobData,
    stragglers: Stragglers,
    findings: Sequence[JobFinding],
    stalls: Sequence[StallOfRank],
) -> str:
    """What stopped, if anything did, and who is waited for. Of ranks that are missing, or were not
    compared, nothing is said but that they are."""
    if not job.ranks:
        return f"No run of the {counted(job.world_size, 'rank')} could be read."
    sentence = _who(stragglers)
    is_part = bool(job.missing or stragglers.left_out)
    if is_part and stragglers.pattern is not Pattern.UNKNOWN:
        # The others may be later still.
        compared = counted(len(job.ranks) - len(stragglers.left_out), "rank")
        sentence = f"Of the {compared} compared, {sentence[:1].lower()}{sentence[1:]}"
    if job.missing:
        sentence += f"; of {counted(len(job.missing), 'rank')} that {_is_are(job.missing)} missing"
        sentence += ", nothing is known"
    if stragglers.left_out and stragglers.pattern is not Pattern.UNKNOWN:
        left_out = stragglers.left_out
        sentence += f"; {ranks_text(left_out)} {_is_are(left_out)} not compared, as too few of the "
        sentence += f"steps of the others are there of {'it' if len(left_out) == 1 else 'them'}"
    if any(not stall.has_ended for stall in stalls):
        first = findings[0]  # on these stalls
        return f"{capitalised(first.about)}: {first.evidence}. {sentence}."
    return f"{sentence}."


def _is_are(things: Sized) -> str:
    return "is" if len(things) == 1 else "are"


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
            text += "and it can't be told in which phase"
        else:
            text += f"{small_percent(found.path_share, 1)} of that {where_text(found.path)}"
        return text + _loss(stragglers)
    if pattern is Pattern.IN_TURN:
        several = "Several ranks are waited for, together or in turn, and none can be named"
        return several + _loss(stragglers)
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
