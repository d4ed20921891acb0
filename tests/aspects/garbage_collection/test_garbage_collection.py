# SPDX-License-Identifier: Apache-2.0
"""What is noted of Python's garbage collector, by a clock that the test sets."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import analysis
from pyinstrument_gpu.aspects.garbage_collection import KIND
from pyinstrument_gpu.aspects.garbage_collection.aspect import GarbageCollectionAspect
from pyinstrument_gpu.core.file.items import CAUSE_ITEM, NONE
from pyinstrument_gpu.core.file.state import State
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.native import native
from pyinstrument_gpu.report.document import document_of
from tests.helpers.clock import fake_clock
from tests.helpers.run_items import written

US, MS = 1_000, 1_000_000


@pytest.fixture
def advance() -> Iterator[Callable[[int], None]]:
    gc.disable()
    with fake_clock() as advance:
        yield advance
    gc.enable()


def collect(advance: Callable[[int], None], time_ns: int, generation: int = 2) -> None:
    """What Python does where it collects."""
    native.on_collection("start", {"generation": generation})
    advance(time_ns)
    native.on_collection("stop", {"generation": generation})


def noted(run: Run) -> list[tuple[int, ...]]:
    names = ["time_ns", "step", "kind", "note"]
    return sorted(tuple(item) for item in run.noted_causes.items[names].tolist())


def test_long_collections_have_their_times_and_short_ones_are_summed_by_step(
    advance: Callable[[int], None],
) -> None:
    with pig.record() as recording:
        collect(advance, 50 * US)  # outside steps
        for times_us in ((30, 40), (), (300, 20)):
            with pig.gpu_step():
                for time_us in times_us:
                    collect(advance, time_us * US, 1)
                advance(MS)
    run = recording.run
    assert noted(run) == [(20 * US, 2, KIND, 0), (70 * US, 0, KIND, 0), (300 * US, -1, KIND, 1)]
    assert native.on_collection not in gc.callbacks


def test_a_slow_step_is_explained_by_its_collection(advance: Callable[[int], None]) -> None:
    with pig.record() as recording:
        for step in range(20):
            with pig.gpu_step():
                advance(MS)
                if step == 15:
                    advance(2 * MS)
                    collect(advance, 40 * MS)
    run = recording.run
    found = analysis.of(run).excess
    assert found.steps["index"].tolist() == [15]
    [row] = [row for row, one in enumerate(found.causes) if one.name == "garbage_collection"]
    assert found.parts_ns[row].tolist() == [40 * MS]
    assert found.excess_ns.tolist() == [42 * MS]
    assert found.note(row, 0) == "generation 2"


def slowed_by_collections(advance: Callable[[int], None], manage: Callable[[], None]) -> Run:
    with pig.record() as recording:
        for step in range(40):
            with pig.gpu_step():
                advance(MS)
                if step % 10 == 5:
                    collect(advance, 40 * MS)
                if step == 5:
                    manage()
    return recording.run


def test_who_manages_the_collector_is_not_told_to(
    advance: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, is_enabled = [0], [True]
    monkeypatch.setattr(gc, "get_freeze_count", lambda: frozen[0])
    monkeypatch.setattr(gc, "isenabled", lambda: is_enabled[0])

    def advised(is_frozen: bool, is_disabled: bool) -> list[str]:
        frozen[0], is_enabled[0] = 0, True

        def manage() -> None:
            frozen[0], is_enabled[0] = int(is_frozen), not is_disabled

        run = slowed_by_collections(advance, manage)
        return [one.about for one in document_of(run).findings]

    assert advised(is_frozen=False, is_disabled=False) == ["garbage collection"]
    assert advised(is_frozen=True, is_disabled=False) == []
    assert advised(is_frozen=False, is_disabled=True) == []


def test_a_generation_of_any_number_takes_no_memory(advance: Callable[[int], None]) -> None:
    with pig.record() as recording, pig.gpu_step():
        advance(MS)
        native.add_cause(KIND, 0, MS, note=2**32 - 2)
    [cause] = GarbageCollectionAspect().causes(recording.run)
    assert cause.intervals["note"].tolist() == [2**32 - 2]
    assert len(cause.notes) == 16


def test_what_a_program_calls_by_mistake_is_not_noted(advance: Callable[[int], None]) -> None:
    native.on_collection("start", {})  # before the recording
    with pig.record() as recording:
        native.on_collection("stop", {})
        wrong: tuple[tuple[Any, ...], ...] = (("start", None), (3, {}), ("\ud800", {}), ("start",))
        for arguments in wrong:
            native.on_collection(*arguments)
        native.on_collection("start", {"generation": "old"})
        advance(MS)
        native.on_collection("stop", [])
        native.add_cause(KIND, 7, 6)
    assert noted(recording.run) == [(MS, -1, KIND, 0)]


def test_who_clears_the_callbacks_leaves_it_unknown(
    advance: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched, pig.record() as recording:
        patched.setattr(gc, "callbacks", [])
    run = recording.run
    assert [*GarbageCollectionAspect().unknown(run)] == [
        "Time of the garbage collector: the program has cleared gc.callbacks."
    ]
    names = [one.name for one in analysis.of(run).excess.causes]
    assert "garbage_collection" not in names


@pytest.mark.parametrize("column", ["begin_ns", "time_ns"])
def test_of_a_damaged_log_what_comes_before_is_kept(column: str) -> None:
    items = np.zeros(3, CAUSE_ITEM)
    items["begin_ns"], items["step"], items["kind"] = [1, 5, 9], NONE, KIND
    items[column][2] = -1
    run = written(State(), CAUSES=[item.tobytes() for item in items])
    assert run.noted_causes.items["begin_ns"].tolist() == [1, 5]
    assert run.noted_causes.until_ns == 5
