# SPDX-License-Identifier: Apache-2.0
"""The report that a run prints by itself. tests/snapshots has it in full."""

import pytest

from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.summary import MOST_LINES
from tests.helpers.made_script import Script
from tests.page.runs import training
from tests.report.programs import RUNS

MS = 1_000_000


def lines(run: Run, width: int = 80) -> list[str]:
    return run.report(file="train.gpurun", width=width, color=False).splitlines()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", RUNS)
def test_it_fits_on_a_screen(name: str, width: int) -> None:
    assert len(lines(RUNS[name](), width)) <= MOST_LINES


def test_of_many_phases_those_that_take_longest_are_shown_in_their_order() -> None:
    script = Script()
    for _ in range(8):
        with script.step():
            for number in range(40):
                script.leaf(f"phase {number}", (1 + number) * MS)
    shown = lines(script.run())
    named = [line.split()[1] for line in shown if line.startswith("phase ")]
    assert named == [str(number) for number in range(40 - len(named), 40)]
    assert len(named) >= 7 and f"... and {40 - len(named)} smaller phases" in "\n".join(shown)


def test_a_phase_is_shown_with_those_around_it() -> None:
    script = Script()
    for _ in range(8):
        with script.step():
            with script.phase("outer"):
                script.leaf("inner", 9 * MS)
            for number in range(20):
                script.leaf(f"small {number}", MS)
    shown = lines(script.run())
    place = next(i for i, line in enumerate(shown) if line.startswith("outer "))
    assert shown[place + 1].startswith("  inner ")


def test_the_largest_phase_is_shown_however_long_its_name_and_the_lines_around_it() -> None:
    script = Script()
    with script.phase("epoch of " + 30 * "long "):
        for _ in range(8):
            with script.step():
                with script.phase("outer " + 30 * "long "):
                    script.leaf("inner " + 30 * "long ", 9 * MS)
                script.leaf("small " + 30 * "long ", MS)
    assert any(line.startswith("  outer ") for line in lines(script.run()))


def test_columns_that_say_nothing_are_left_out() -> None:
    script = Script()
    with script.step():
        script.leaf("forward", MS)
    header = next(line for line in lines(script.run()) if line.startswith("ms per step"))
    assert header.split()[3:] == ["mean", "p95", "%"]


def test_a_change_is_named_once() -> None:
    text = " ".join("\n".join(lines(training())).split())
    assert text.count("keep the value on the device") == 1


def test_only_three_notes_are_shown() -> None:
    script = Script()
    with script.step():
        script.leaf("forward", MS)
    run = script.run()
    run.notes = tuple(f"note {number}" for number in range(5))
    text = "\n".join(lines(run))
    assert "! note 2" in text and "! note 3" not in text
    assert "! and 2 more notes (report --verbose)" in text


def test_what_somebody_asked_for_comes_before_the_rest() -> None:
    """And other lines give way to it, if there are many, but for what explains most of the run."""
    *_, last = "\n".join(lines(RUNS["all"]())).split("\n\n")
    assert [line.partition(" ")[0] for line in last.splitlines()] == [
        *("Modules:", "Profiled", "Energy", "Start-up:", "imported,", "More:")
    ]


def test_of_the_time_outside_steps_only_what_matters_is_named() -> None:
    script = Script()
    for name, duration_ns in (("load", 900 * MS), ("close", MS)):
        with script.phase(name):
            script.leaf("inner", duration_ns)
        for _ in range(4):
            with script.step():
                script.leaf("forward", 25 * MS)
    text = "\n".join(lines(script.run(), 120))
    before = "Outside steps: 901 ms of 1.10 s (82%), 900 ms of it before the first step"
    assert f"\n{before}; 900 ms load\n" in text


@pytest.mark.parametrize(
    ("end", "note"),
    [
        ({"exit_code": 1, "exception": "ValueError"}, "! Ended by ValueError."),
        ({"exit_code": 3}, "! Ended with exit code 3."),
        ({"exit_code": 0}, None),
    ],
)
def test_how_a_program_failed_is_said(end: dict[str, object], note: str | None) -> None:
    run = training()
    run.environment = {**run.environment, "program_end": end}
    assert [line for line in lines(run) if "Ended" in line] == [note] * (note is not None)


def test_what_explains_most_of_the_run_gives_way_last() -> None:
    """A start-up of 150 s stands before phases of a hundredth of a step."""
    script = Script()
    script.work(150_000 * MS)
    for _ in range(12):
        with script.step():
            for name in ("forward", "backward"):
                script.leaf(name, 40 * MS)
            for small in range(9):
                script.leaf(f"small {small}", MS // 10)
    run = script.run()
    for words, small, others in ((1, 5, 1), (10, 2, 1), (20, 0, 0)):
        run.notes = tuple(f"note {number}: {'many words ' * words}" for number in range(3))
        shown = lines(run)
        assert len(shown) <= MOST_LINES
        assert any(line.startswith("Outside steps: 150 s of 151 s (99%)") for line in shown)
        assert sum(line.startswith("small") for line in shown) == small
        assert sum(line.startswith("Recording:") for line in shown) == others
