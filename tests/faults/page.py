# SPDX-License-Identifier: Apache-2.0
"""The tables of README.md beside this file, made from the rows. `python -m tests.faults.page`
writes them, with build/native/tests on the path.

The text around them is written by hand. A table stands between two comments of HTML, of which the
first names its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import accumulate
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.table import GROUPS

PAGE = Path(__file__).with_name("README.md")

_TARGETS = ("`make test`", "`make check`", "`make test-all`")
_HEAD = "| what is done | what holds | times |\n|---|---|---:|\n"
_AS_ABOVE = "as above"
_TABLE = re.compile(r"(<!-- faults: ([a-zA-Z ]+) -->\n).*?(<!-- end of faults -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The page with all its tables as they should be.

    Raises:
        ValueError: there isn't one table for each group, in their order.
    """
    tables = {"all": _summary(), **{group.name: _table(group.faults) for group in GROUPS}}
    found = [name for _, name, _ in _TABLE.findall(page)]
    if found != list(tables):
        raise ValueError(f"{PAGE.name} has tables of {found}, and should have {list(tables)}")
    return _TABLE.sub(lambda match: match[1] + tables[match[2]] + match[3], page)


def _table(faults: Iterable[Fault]) -> str:
    rows, above = [_HEAD], ""
    for fault in faults:
        holds = _AS_ABOVE if fault.holds == above else fault.holds
        rows.append(f"| {fault.done} | {holds} | {_times(fault)[-1]:,} |\n")
        above = fault.holds
    return "".join(rows)


def _times(*faults: Fault) -> tuple[int, ...]:
    """How often each of the targets does them."""
    added = [(fault.times, fault.thorough_times, fault.slow_times) for fault in faults]
    return tuple(accumulate(map(sum, zip(*added, strict=True))))


def _summary() -> str:
    faults = [fault for group in GROUPS for fault in group.faults]
    times = _times(*faults)
    return (
        f"There are {len(faults)} faults. {_TARGETS[0]} does them {times[0]:,} times in all, "
        f"{_TARGETS[1]} {times[1]:,} times and {_TARGETS[2]} {times[2]:,} times.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
