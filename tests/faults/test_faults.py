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
    """What a row does in `make test`, and what `make check` and `make test-all` add."""
    for group in GROUPS:
        for fault in group.faults:
            name, done = f"{group.name}-{fault.name}", fault.times
            if done:
                yield pytest.param(fault, range(done), id=name)
            for mark, times in (("thorough", fault.thorough_times), ("slow", fault.slow_times)):
                if times:
                    numbers, marks = range(done, done + times), getattr(pytest.mark, mark)
                    yield pytest.param(fault, numbers, id=f"{name}-{mark}", marks=marks)
                done += times


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
    assert page == with_tables(page), "write it anew, see CONTRIBUTING.md"
