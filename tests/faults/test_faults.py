# SPDX-License-Identifier: Apache-2.0
"""The loop that does every fault of the table as often as its row says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fault import Fault, Trial
from tests.faults.page import PAGE, with_tables
from tests.faults.table import GROUPS


def _cases() -> Iterator[Any]:
    """What a row does in `make test`, and what `make test-all` adds."""
    for group in GROUPS:
        for fault in group.faults:
            name, times = f"{group.name}-{fault.name}", fault.times
            if times:
                yield pytest.param(fault, range(times), id=name)
            if fault.slow_times:
                numbers = range(times, times + fault.slow_times)
                yield pytest.param(fault, numbers, id=f"{name}-slow", marks=pytest.mark.slow)


@pytest.mark.parametrize(("fault", "numbers"), list(_cases()))
def test_fault(fault: Fault, numbers: range, tmp_path: Path) -> None:
    outcomes: Counter[str | None] = Counter()
    for number in numbers:
        try:
            outcomes[fault.check(Trial(fault.name, number, tmp_path))] += 1
        except BaseException:
            print(f"{fault.name}: trial {number}")  # pytest shows it with the failure
            raise
    for outcome, share in fault.at_least.items():
        assert outcomes[outcome] >= share * len(numbers), outcomes


def test_names_are_unique() -> None:
    for group in GROUPS:
        assert len({fault.name for fault in group.faults}) == len(group.faults)


def test_the_page_shows_this_table() -> None:
    page = PAGE.read_text()
    assert page == with_tables(page), "write it anew: python -m tests.faults.page"
