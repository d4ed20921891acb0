# SPDX-License-Identifier: Apache-2.0
"""The part of the report that says what the advice of guides is worth in this run."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from pyinstrument_gpu.analysis.rules import EDIT_SHARE, findings, is_nothing_worth_an_edit
from pyinstrument_gpu.analysis.rules.finding import Finding, Worth
from pyinstrument_gpu.model.run_data import RunData
from pyinstrument_gpu.report.table import counted, printable, small_percent

NEGLIGIBLE_SHARE = 0.001
_MAX_FINDINGS = 5


def rules_section(run: RunData) -> Iterator[Text]:
    """What the findings are worth, the largest first, with their evidence unless they are worth
    nothing; then what can't be told."""
    found = findings(run)
    nothing = is_nothing_worth_an_edit(run, found)
    if not found and not nothing:
        return
    yield Text()
    yield Text("What guides advise, and what it is worth in this run", "bold")
    known = [one for one in found if one.worth is not None]
    for one in known[:_MAX_FINDINGS]:
        assert one.worth is not None
        yield Text(printable(f"{_promise(one)}: {_worth(one.worth)}"))
        if one.worth.high_share >= NEGLIGIBLE_SHARE:
            yield Text(printable(f"   {one.evidence}"), "dim")
        if one.edit and one.worth.high_share >= EDIT_SHARE:
            yield Text(printable(f"   {one.edit}"), "dim")
    if len(known) > _MAX_FINDINGS:
        yield Text(f"... and {counted(len(known) - _MAX_FINDINGS, 'smaller one')}", "yellow")
    untold = [f"{_promise(one)} ({one.evidence})" for one in found if one.worth is None]
    if untold:
        yield Text(printable(f"Can't be told: {'; '.join(untold)}"))
    if nothing:
        yield Text(
            f"Nothing here is worth an edit: no saving and no advice reaches {EDIT_SHARE:.0%}"
        )


def _promise(one: Finding) -> str:
    return one.advice + (f" (guides say {one.promised})" if one.promised else "")


def _worth(worth: Worth) -> str:
    if not worth.high_share:
        return "nothing"
    low, high = (
        small_percent(time_ns, worth.whole_ns) for time_ns in (worth.low_ns, worth.high_ns)
    )
    if worth.low_ns < NEGLIGIBLE_SHARE * worth.whole_ns:
        share = f"at most {high}"
    else:
        share = high if low == high else f"{low} to {high}"
    return f"{share} of the {worth.whole.value}"
