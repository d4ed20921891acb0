# SPDX-License-Identifier: Apache-2.0
"""What is said of a start-up: parts that add up, and what took longest by its name."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from pyinstrument_gpu.aspects.compilations.data import Compilation, Compilations
from pyinstrument_gpu.aspects.startup import IMPORT, PARTS
from pyinstrument_gpu.aspects.startup.aspect import startup_times
from pyinstrument_gpu.aspects.startup.data import Interval, Startup
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.report.console import printed
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.overview import sections
from pyinstrument_gpu.report.summary import summary
from tests.helpers.timed_runs import made_run

S = 1_000_000_000
ZERO_S = 1000
"""When the recording began, by the machine's clock, 5 s before the first step."""


def interval(part: Any, name: str, begin_s: float, end_s: float, line: int | None = 1) -> Interval:
    times = {"begin_ns": int(begin_s * S), "end_ns": int(end_s * S)}
    return Interval(part=part, name=name, file="/home/a/gpt.py", line=line, **times)


def run_with(startup: Startup | None, first_step_s: float = 0.1, **parts: Any) -> Run:
    run = made_run([first_step_s * S, *[0.1 * S] * 40])
    steps = run.steps.array
    steps["begin_ns"] += 5 * S
    steps["end_ns"] += 5 * S
    anchor = {"run_ns": 0, "monotonic_ns": ZERO_S * S, "realtime_ns": 10**18}
    run.environment |= {"anchor": anchor, "cwd": "/home/a"}
    vars(run).update(startup=startup, duration_ns=run.duration_ns + 5 * S, **parts)
    return run


LAUNCHED = Startup(
    process_ns=(ZERO_S - 1) * S,
    launched_ns=int((ZERO_S - 0.9) * S),
    watched_ns=ZERO_S * S,
    program_ns=ZERO_S * S,
    intervals=(
        interval(IMPORT, "torch", ZERO_S, ZERO_S + 1),
        interval("optimizer", "AdamW", ZERO_S + 2, ZERO_S + 4.5, 30),
        interval(IMPORT, "torch._dynamo", ZERO_S + 2.1, ZERO_S + 4.1, 30),
        interval("batch", "", ZERO_S + 4.9, ZERO_S + 7),
    ),
    short_ns={"import": S // 10},
)


def test_parts_of_a_program_that_was_started_here() -> None:
    """An import inside of an optimizer counts once, and is named after it; what lies in the first
    step is apart."""
    run = run_with(LAUNCHED, first_step_s=3)
    text = printed(sections(document_of(run))["startup"], 100).strip()
    assert (
        text
        == """\
Start-up: 6.00 s from the start of the process to the first step; the first step 3.00 s, 2.00 s of
it fetching batches
ms                             time      %
---------------------------  ------  -----
imports                      3100.0   51.7
  torch._dynamo              2000.0   33.3  (by AdamW, gpt.py:30)
  torch                      1000.0   16.7  (gpt.py:1)
pyinstrument-gpu run itself   900.0   15.0
making optimizers             500.0    8.3
  AdamW                       500.0    8.3  (gpt.py:30)
Python's start                100.0    1.7
fetching batches              100.0    1.7
---------------------------  ------  -----
not covered                  1300.0   21.7
until the first step         6000.0  100.0"""
    )
    short = printed(summary(document_of(run), 120), 120)
    words = (
        "Start-up: 6.00 s from the start of the process to the first step: 2.00 s torch._dynamo "
    )
    assert f"{words}imported by AdamW, " in short


def test_what_came_before_the_recording_is_not_divided() -> None:
    startup = Startup(process_ns=(ZERO_S - 8) * S, watched_ns=ZERO_S * S)
    document = document_of(run_with(startup))
    times = document.sections["startup"]
    assert (times.total_ns, times.not_covered_ns) == (13 * S, 5 * S)
    assert [(part.part, part.time_ns) for part in times.parts] == [("before", 8 * S)]
    assert any(
        "8.00 s before the recording began: `pyinstrument" in one for one in document.unknown
    )
    # Of which nothing is known, which is no line of the short report.
    assert "Start-up" not in printed(summary(document, 100), 100)


def test_short_start_up_has_no_line() -> None:
    document = document_of(run_with(LAUNCHED))
    assert "Start-up: 6.00 s" in printed(summary(document, 100), 100)
    long = run_with(LAUNCHED)
    long.duration_ns = 121 * S
    assert "Start-up" not in printed(summary(document_of(long), 100), 100)


def test_compilation_counts_where_it_lies() -> None:
    before, inside = (
        Compilation(begin_ns=begin_s * S, duration_ns=took_s * S, kind="dynamo", function="forward")
        for begin_s, took_s in ((1, 1), (5, 2))
    )
    found = Compilations(count=2, total_ns=3 * S, compilations=(before, inside))
    run = run_with(Startup(watched_ns=ZERO_S * S), first_step_s=4, compilations=found)
    times = startup_times(run)
    assert times is not None
    assert [(part.part, part.time_ns) for part in times.parts] == [("compile", S)]
    assert [(part.part, part.time_ns) for part in times.first_step_parts] == [("compile", 2 * S)]


def test_without_a_watch_nothing_is_said() -> None:
    assert startup_times(run_with(None)) is None


@given(
    st.lists(
        st.tuples(st.sampled_from(PARTS), st.integers(-3, 12), st.integers(1, 9)), max_size=12
    ),
    st.dictionaries(st.sampled_from(PARTS), st.integers(0, 4 * S), max_size=3),
)
def test_parts_and_the_rest_add_up(
    times_s: list[tuple[str, int, int]], short: dict[str, int]
) -> None:
    """Whatever overlaps what; a moment that some part covers is counted once."""
    intervals = tuple(
        interval(part, "", ZERO_S + begin, ZERO_S + begin + length)
        for part, begin, length in times_s
    )
    startup = Startup(
        process_ns=(ZERO_S - 3) * S,
        watched_ns=(ZERO_S - 3) * S,
        intervals=intervals,
        short_ns=short,  # type: ignore[arg-type]
    )
    times = startup_times(run_with(startup))
    assert times is not None
    assert sum(part.time_ns for part in times.parts) + times.not_covered_ns == 8 * S
    covered = {
        s for _, begin, length in times_s for s in range(max(begin, -3), min(begin + length, 5))
    }
    without = startup_times(run_with(Startup(**{**_fields(startup), "short_ns": {}})))
    assert without is not None
    assert without.not_covered_ns == (8 - len(covered)) * S
    assert times.not_covered_ns >= 0


def _fields(startup: Startup) -> dict[str, Any]:
    return {name: getattr(startup, name) for name in startup.__struct_fields__}
