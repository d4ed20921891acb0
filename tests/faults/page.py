# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/reliability.md, made from the rows. `python -m tests.faults.page` writes them.

The text around them is written by hand. A table stands between two comments of HTML, of which the
first names its group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from tests.faults.fault import Fault
from tests.faults.table import GROUPS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"

_HEAD = "| what is done | what holds | `make test` | `make test-all` |\n|---|---|---:|---:|\n"
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
    return _HEAD + "".join(map(_row, faults))


def _row(fault: Fault) -> str:
    all_times = fault.times + fault.slow_times
    return f"| {fault.done} | {fault.holds} | {fault.times:,} | {all_times:,} |\n"


def _summary() -> str:
    faults = [fault for group in GROUPS for fault in group.faults]
    times = sum(fault.times for fault in faults)
    all_times = times + sum(fault.slow_times for fault in faults)
    return (
        f"There are {len(faults)} faults. `make test` does them {times:,} times in all, and "
        f"`make test-all` {all_times:,} times.\n"
    )


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
