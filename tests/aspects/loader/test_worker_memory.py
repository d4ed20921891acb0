# SPDX-License-Identifier: Apache-2.0
"""The memory that a worker does not share, and the part of a dataset that makes it grow."""

from __future__ import annotations

import sys
from pathlib import Path
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
        self.labels = [1] * 30_000
        self.names = ["x" * 10_000] * 20_000
        self.line = sys._getframe().f_lineno - 1
        self.sizes: dict[int, tuple[str, str]] = dict.fromkeys(range(12_000), ("y" * 9_000, "z"))


class Wrapped:
    def __init__(self, dataset: object) -> None:
        self.dataset = dataset
        self.indices = list(range(40_000))


class Inherits(Rows):
    pass


def test_the_container_of_the_largest_objects_is_named_with_its_line() -> None:
    rows = Rows()
    size = 20_000 * (8 + sys.getsizeof("x" * 10_000))
    found = largest_field(rows)
    assert found == {
        "dataset": "Rows",
        "name": "names",
        "items": 20_000,
        "kind": "list",
        "bytes": size,
        "file": __file__,
        "line": rows.line,
    }
    assert largest_field(Wrapped(Wrapped(rows))) == found
    rows.names.clear()
    found = largest_field(rows)
    assert found is not None
    assert (found["name"], found["kind"], found["line"]) == ("sizes", "dict", rows.line + 2)
    rows.sizes.clear()
    assert largest_field(rows) is None  # many small numbers are not large


def test_a_class_whose_source_does_not_set_it_has_no_line() -> None:
    rows: Any = Rows()
    rows.later = ["x" * 20_000] * 30_000
    found = largest_field(rows)
    assert found is not None
    assert (found["name"], found["line"]) == ("later", 0)
    found = largest_field(Inherits())
    assert found is not None
    assert (found["name"], found["line"]) == ("names", 0)


def test_private_memory_is_that_of_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollup = tmp_path / "smaps_rollup"
    rollup.write_text("5-7 ---p 0 [rollup]\nPrivate_Clean: 40 kB\nPrivate_Dirty: 112 kB\n")
    monkeypatch.setattr(worker_memory, "_ROLLUP", str(rollup))
    assert private_bytes() == 112 * 1024
    for text in ("nothing", "Private_Dirty: x kB"):
        rollup.write_text(text)
        assert private_bytes() is None
    rollup.unlink()
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
    found = [f"{one.about} {one.evidence}" for one in ASPECT.failures(run)]
    assert all(document_of(run).verdict.startswith("Memory of the workers") for _ in found)
    return found


def test_workers_that_may_copy_what_they_read_are_told_first() -> None:
    field = LargestField("Rows", "names", "list", 400_000, 90 * MIB, "a.py", 7)
    assert grown(96 * MIB, field) == [
        "memory of the workers of the loader grows by 96.00 MiB in one of 2, as each may copy the "
        "pages of Rows.names (a.py:7), a list of 400,000 objects, that it reads; one array or "
        "tensor would be shared"
    ]
    assert not grown(10 * MIB, field)
    assert not grown(200 * MIB, field)  # more than it can be
    assert not grown(None, field)
    assert not grown(96 * MIB, None)
