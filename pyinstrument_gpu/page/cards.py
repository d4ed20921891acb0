# SPDX-License-Identifier: Apache-2.0
"""Findings as cards: an order, what it is about, what it is worth, and a table of the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from pyinstrument_gpu.analysis.advice import Finding
from pyinstrument_gpu.job.verdict import JobFinding
from pyinstrument_gpu.parts.words import capitalised
from pyinstrument_gpu.report.summary import gain

_JOB_ORDERS = {
    "straggler": "See why {}",
    "imbalance": "See why {}",
    "start": "See why {}",
    "collective": "Wait less for {}",
}
"""What to do about findings on a job, by their kind; failures say what happened."""

_LINE = re.compile(r"[^\s(]+\.py:\d+")


class Card(NamedTuple):
    """A finding that matters.

    Attributes:
        title: what to do about it.
        subject: what that is about, often with a line of the program; empty where `title` says it.
        worth: what it saves or costs; empty where that is unknown.
        rows: further sentences, by what they are; empty ones are left out.
        kind: "failure", "doubt" or neither, for its style.
    """

    title: str
    subject: str
    worth: str
    rows: Mapping[str, str | None]
    kind: str = ""


def card_of(one: Finding) -> Card:
    """Return the card of a finding on a run. Its title is the first clause of the edit; what guides
    advise is an order by itself."""
    if one.kind == "guide" or not one.edit:
        order, subject, details = one.about, "", one.edit or ""
    else:
        order, *rest = re.split("[:;] ", one.edit, maxsplit=1)
        subject, details = one.about, "".join(rest)
    line = _LINE.search(details)
    if line is not None and not _LINE.search(order + subject):
        subject = f"{subject}, {line[0]}" if subject else line[0]
    return Card(
        title=capitalised(order),
        subject=subject,
        worth=gain(one) if one.of_ns else "",
        rows={"how": "" if details in one.evidence else details, "why": one.evidence},
        kind="" if one.is_certain else "doubt",
    )


def card_of_job(one: JobFinding, line: str | None) -> Card:
    """Return the card of a finding on a job; `line` is that in which its straggler is slow."""
    return Card(
        title=capitalised(_JOB_ORDERS.get(one.kind, "{}").replace("{}", one.about)),
        subject=(line or "") if one.kind == "straggler" else "",
        worth=one.cost,
        rows={"why": one.evidence, "look": one.look},
        kind="failure" if one.kind == "failure" else "",
    )
