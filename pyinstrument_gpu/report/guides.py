# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what the advice of guides is worth in this run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyinstrument_gpu.analysis.advice import EDIT_SHARE, Finding
from pyinstrument_gpu.analysis.rules.case import Guidance
from pyinstrument_gpu.document.findings import Guides
from pyinstrument_gpu.parts.parts import Sentence
from pyinstrument_gpu.parts.words import counted, printable, small_percent

NEGLIGIBLE_SHARE = 0.001
_MAX_FINDINGS = 5


def guides_section(guides: Guides | None, findings: Sequence[Finding]) -> Iterator[Sentence]:
    """What their advice is worth, the largest first, with the evidence unless it is worth nothing;
    then what can't be told."""
    if guides is None:
        return
    yield Sentence()
    yield Sentence("What guides advise, and what it is worth in this run", "title")
    told = [_guidance(one) for one in findings if one.kind == "guide"]
    known = [*told, *(one for one in guides.rows if one.high_ns is not None)]
    known.sort(key=_high_share, reverse=True)
    for one in known[:_MAX_FINDINGS]:
        share = _high_share(one)
        yield Sentence(printable(f"{_promise(one)}: {_worth(one)}"))
        if share >= NEGLIGIBLE_SHARE:
            yield Sentence(printable(f"   {one.evidence}"), "note")
        if one.edit is not None and share >= EDIT_SHARE:
            yield Sentence(printable(f"   {one.edit}"), "note")
    if len(known) > _MAX_FINDINGS:
        yield Sentence(f"... and {counted(len(known) - _MAX_FINDINGS, 'smaller one')}", "warn")
    untold = [f"{_promise(one)} ({one.evidence})" for one in guides.rows if one.high_ns is None]
    if untold:
        yield Sentence(printable(f"Can't be told: {'; '.join(untold)}"))
    if guides.nothing_worth_an_edit:
        yield Sentence(
            f"Nothing here is worth an edit: no saving and no advice reaches {EDIT_SHARE:.0%}"
        )


def _guidance(one: Finding) -> Guidance:
    times = (one.low_ns, one.high_ns, one.of_ns, one.of)
    return Guidance(one.about, one.promised, *times, one.evidence, one.edit)


def _promise(one: Guidance) -> str:
    return one.advice + (f" (guides say {one.promised})" if one.promised else "")


def _high_share(one: Guidance) -> float:
    return one.high_ns / one.of_ns if one.high_ns and one.of_ns else 0.0


def _worth(one: Guidance) -> str:
    low_ns, high_ns, of_ns = one.low_ns or 0.0, one.high_ns or 0.0, one.of_ns
    if not high_ns or not of_ns:
        return "nothing"
    low, high = (small_percent(time_ns, of_ns) for time_ns in (low_ns, high_ns))
    if low_ns < NEGLIGIBLE_SHARE * of_ns:
        share = f"at most {high}"
    else:
        share = high if low == high else f"{low} to {high}"
    return f"{share} of the {one.of}"
