# SPDX-License-Identifier: Apache-2.0
"""The memory that a worker does not share, and the part of a dataset that makes it grow."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from pyinstrument_gpu.aspects.loader import worker_memory
from pyinstrument_gpu.aspects.loader.aspect import ASPECT
from pyinstrument_gpu.aspects.loader.data import LargestField, Loader, Loaders, WorkerTimes
from pyinstrument_gpu.aspects.loader.worker_memory import largest_field, private_bytes
from pyinstrument_gpu.report.document import document_of
from tests.helpers.timed_runs import MS, made_run

MIB = 1 << 20


class Rows:
    def __init__(self) -> None:
        self.few = [1, 2, 3]
        self.names = [str(number) for number in range(20_000)]
        self.line = sys._getframe().f_lineno - 1
        self.sizes: dict[int, int] = dict.fromkeys(range(12_000), 1)


class Inherits(Rows):
    pass


def test_the_largest_container_of_a_dataset_is_named_with_its_line() -> None:
    rows = Rows()
    assert largest_field(rows) == {
        "name": "names",
        "items": 20_000,
        "kind": "list",
        "file": __file__,
        "line": rows.line,
    }
    rows.names.clear()
    found = largest_field(rows)
    assert found is not None
    assert (found["name"], found["kind"], found["line"]) == ("sizes", "dict", rows.line + 2)
    rows.sizes.clear()
    assert largest_field(rows) is None


def test_a_class_whose_source_does_not_set_it_has_no_line() -> None:
    rows: Any = Rows()
    rows.later = [0] * 30_000
    found = largest_field(rows)
    assert found is not None
    assert (found["name"], found["line"]) == ("later", 0)
    found = largest_field(Inherits())
    assert found is not None
    assert (found["name"], found["line"]) == ("names", 0)


def test_private_memory_is_that_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    known = private_bytes()
    assert known is None or known > 0
    monkeypatch.setattr(worker_memory, "_ROLLUP", "/nowhere")
    assert private_bytes() is None


def grown(grown_bytes: int | None, largest: LargestField | None) -> list[str]:
    times = dict.fromkeys(
        ("making_ns", "longest_ns", "waiting_ns", "starting_ns", "cpu_ns", "other_cpu_ns"), 1
    )
    row = WorkerTimes(worker=0, processes=1, batches=60, grown_bytes=grown_bytes, **times)
    run = made_run([10 * MS] * 20)
    run.loader = Loaders(
        (Loader(dataset="Rows", workers=2, iterators=1, rows=(row,), largest=largest),)
    )
    assert len(document_of(run).findings) >= len([*ASPECT.failures(run)])
    return [f"{one.about} {one.evidence}" for one in ASPECT.failures(run)]


def test_workers_that_copy_what_they_read_are_told_first() -> None:
    field = LargestField("names", "list", 400_000, "a.py", 7)
    assert grown(96 * MIB, field) == [
        "memory of the workers of the loader grows by 96.00 MiB in one of 2 in 60 batches, as each "
        "copies the pages of Rows.names (a.py:7), a list of 400,000 objects, that it reads; one "
        "array or tensor would be shared"
    ]
    assert not grown(10 * MIB, field)
    assert not grown(None, field)
    assert not grown(96 * MIB, None)
