# SPDX-License-Identifier: Apache-2.0
"""What is learnt in Python while recording: a recording goes over its watchers, and names none."""

import sys
from types import SimpleNamespace

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects import table
from pyinstrument_gpu.core.aspect import Aspect
from pyinstrument_gpu.core.watcher import ActiveRecording, Watcher


class Noting(Watcher):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def begin(self, recording: ActiveRecording) -> None:
        super().begin(recording)
        self.told.append(f"begin {self.is_on}")

    def write(self) -> None:
        self.told.append(f"write {self.is_on}")

    def end(self) -> None:
        if self._recording is not None:
            self._recording.facts["framework"] = f"noted {len(self.told)}"
        super().end()


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> Noting:
    """A watcher that has a row of the table."""
    watcher = Noting()
    module = SimpleNamespace(watcher=lambda options: watcher)
    monkeypatch.setitem(sys.modules, "noted.noting", SimpleNamespace())
    monkeypatch.setitem(sys.modules, "noted.noting.watch", module)
    aspect = SimpleNamespace(ASPECT=Aspect())
    monkeypatch.setitem(sys.modules, "noted.noting.aspect", aspect)
    row = table.AspectRow("noted.noting", "watch")
    monkeypatch.setattr(table, "ASPECTS", (*table.ASPECTS, row))
    return watcher


def test_one_more_is_a_row_of_the_table(noting: Noting) -> None:
    with pig.record() as recording:
        assert recording.watchers["noting"] is noting
        recording.snapshot()
    assert noting.told == ["begin True", "write True", "write True"]
    assert recording.run.environment["framework"] == "noted 2"
    assert not noting.is_on


def test_one_that_has_no_memory_left_stops_no_other(
    noting: Noting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: object) -> None:
        raise MemoryError

    recording = pig.record()
    monkeypatch.setattr(type(recording.watchers["modules"]), "end", fail)
    with recording:
        pass
    assert noting.told[-1] == "write True"
    assert recording.run.complete


def test_what_is_not_asked_for_has_no_watcher() -> None:
    assert "memory" in pig.record().watchers
    assert "memory" not in pig.record(memory=False).watchers
    assert "energy" not in pig.record().watchers
