# SPDX-License-Identifier: Apache-2.0
"""Whether the peak of memory differs between two sides of runs."""

from pyinstrument_gpu.analysis.compare import compare
from pyinstrument_gpu.analysis.memory_change import MemoryChange, memory_change
from pyinstrument_gpu.aspects.memory.data import Memory
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.comparison import comparison_facts, comparison_report
from tests.helpers.timed_runs import runs_of

MIB = 1 << 20


def runs(*peaks_mib: float, device: int | None = 0) -> list[Run]:
    """Runs with these peaks."""
    made = runs_of(*[10.0] * len(peaks_mib))
    for run, peak_mib in zip(made, peaks_mib, strict=True):
        run.memory = Memory(device=device, steps=3, peak_bytes=int(peak_mib * MIB))
    return made


def change(before: list[Run], after: list[Run]) -> MemoryChange:
    found = memory_change(before, after)
    assert found is not None
    return found


def test_peaks_that_lie_apart_differ_for_certain_where_there_are_enough() -> None:
    few = change(runs(300), runs(400))
    assert (few.differs, few.is_significant) == (True, False)
    three = change(runs(300, 301, 302), runs(400, 401, 402))
    assert (three.differs, three.is_significant) == (True, False)  # by chance one time in ten
    four = change(runs(300, 301, 302, 303), runs(200, 201, 202, 203))
    assert (four.differs, four.is_significant) == (True, True)
    assert not change(runs(300, 310), runs(305, 400)).differs
    assert not change(runs(300), runs(302)).differs  # less than is worth a word


def test_peaks_that_lie_apart_are_told() -> None:
    sides = runs(300, 300, 301, 301), runs(400, 401, 400, 401)
    comparison = compare(*sides)
    assert "Peak of memory on the GPU: 300.50 MiB -> 400.50 MiB\n" in comparison_report(comparison)
    facts = comparison_facts(comparison)["memory"]
    assert facts["is_significant"]
    assert facts["before_bytes"] == (300 * MIB, 300 * MIB, 301 * MIB, 301 * MIB)


def test_a_difference_that_may_be_chance_is_said_to_be_so() -> None:
    text = " ".join(comparison_report(compare(runs(300), runs(400))).split())
    assert "300.00 MiB -> 400.00 MiB (which may be chance)" in text


def test_nothing_is_said_where_peaks_are_the_same_or_unknown() -> None:
    assert "Peak of memory" not in comparison_report(compare(runs(300), runs(300)))
    plain = runs_of(10.0)
    assert memory_change(plain, runs(300)) is None
    assert memory_change(runs(300, device=None), runs(300)) is None
    assert "Peak of memory" not in comparison_report(compare(plain, runs(300)))
