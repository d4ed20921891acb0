# SPDX-License-Identifier: Apache-2.0
"""Samples of the main thread's stack, taken when the tests say, by a clock that stands still."""

import inspect
import json
import os
import sched
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.aspects.stacks import watch
from pyinstrument_gpu.aspects.stacks.aspect import ASPECT
from pyinstrument_gpu.aspects.stacks.data import decode_stacks
from pyinstrument_gpu.aspects.stacks.tree import phase_trees
from pyinstrument_gpu.core.run import Run
from pyinstrument_gpu.core.statistics import Scope
from pyinstrument_gpu.errors import ExportError, RunFileDamagedError
from pyinstrument_gpu.export import export
from pyinstrument_gpu.native import native
from pyinstrument_gpu.page.page import html_page
from pyinstrument_gpu.patching.hidden_frames import OWN_FOLDER
from pyinstrument_gpu.report.document import document_of
from pyinstrument_gpu.report.json_text import json_text
from tests.helpers.clock import fake_clock
from tests.helpers.launched import launched

MS = 1_000_000
FILE = Path(__file__).name


@pytest.fixture
def advance(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    monkeypatch.setattr(watch, "watcher", lambda options: watch.StackWatch(by_itself=False))
    with fake_clock() as advance:
        yield advance


def heavy(advance: Callable[[int], None]) -> None:
    advance(30 * MS)
    native.sample_stack()


def light(advance: Callable[[int], None]) -> None:
    advance(10 * MS)
    native.sample_stack()


def in_a_library() -> None:
    scheduler = sched.scheduler(lambda: 0, lambda _: None)
    scheduler.enter(0, 0, native.sample_stack)
    scheduler.run()


def named(function: Callable[..., object], line: int = 2) -> str:
    """A line of a function as the report has it."""
    return f"tests/aspects/stacks/{FILE}:{inspect.getsourcelines(function)[1] + line}"


def recorded(advance: Callable[[int], None], path: Path | None = None) -> Run:
    with pig.record(path, stacks=True) as recording:
        light(advance)
        for _ in range(2):
            with pig.gpu_step():
                with pig.gpu_phase("forward"):
                    heavy(advance)
                    light(advance)
                    with pig.gpu_phase("loss"):
                        light(advance)
                heavy(advance)
    recording.run.environment["gpus"] = []
    return recording.run


def phases_of(run: Run) -> dict[tuple[str, str | None], Any]:
    section = ASPECT.section(run)
    assert section is not None
    return {(one.where, one.phase): one for one in section.phases}


def test_time_is_that_of_the_innermost_phase_and_line(advance: Callable[[int], None]) -> None:
    run = recorded(advance)
    assert not run.notes
    found = phases_of(run)
    times = {at: (one.samples, one.sampled_ns // MS) for at, one in found.items()}
    assert times == {
        ("in steps", "forward"): (4, 80),
        ("in steps", "forward/loss"): (2, 20),
        ("in steps", None): (2, 60),
        ("outside steps", None): (1, 10),
    }
    lines = [(one.line, one.function, one.share) for one in found["in steps", "forward"].lines]
    assert lines == [(named(heavy), "heavy", 0.75), (named(light), "light", 0.25)]
    assert run.stacks is not None
    assert run.stacks.sampled_ns == 170 * MS


def test_what_a_library_does_counts_for_the_line_that_calls_it(
    advance: Callable[[int], None],
) -> None:
    with pig.record(stacks=True) as recording, pig.gpu_step():
        in_a_library()
    (line,) = phases_of(recording.run)["in steps", None].lines
    assert line.line == named(in_a_library, 3)
    assert recording.run.stacks is not None
    files = [file for file, _ in recording.run.stacks.functions]
    assert any(file.endswith("/sched.py") for file in files)
    assert not any(file.startswith(OWN_FOLDER) for file in files)


def test_a_comprehension_counts_for_the_function_that_it_stands_in(
    advance: Callable[[int], None],
) -> None:
    def work() -> None:
        take: Callable[[], object] = native.sample_stack
        advance(MS)
        _ = [take() for _ in range(2)], take()

    with pig.record(stacks=True) as recording, pig.gpu_step():
        work()
    (line,) = phases_of(recording.run)["in steps", None].lines
    name = getattr(work.__code__, "co_qualname", "work")  # from Python 3.11 on
    assert (line.line, line.function, line.samples) == (named(work, 3), name, 3)


def test_code_without_lines_has_that_of_its_function(advance: Callable[[int], None]) -> None:
    code = light.__code__.replace(co_linetable=b"")
    with pig.record(stacks=True) as recording, pig.gpu_step():
        FunctionType(code, globals())(advance)
    assert not recording.run.notes
    (line,) = phases_of(recording.run)["in steps", None].lines
    assert line.line == named(light, 0)


def test_steps_that_were_profiled_and_those_of_other_threads_are_apart(
    advance: Callable[[int], None],
) -> None:
    opened, sampled = threading.Event(), threading.Event()

    def other() -> None:
        with pig.gpu_step():
            opened.set()
            sampled.wait(60)

    with pig.record(stacks=True) as recording:
        native.set_profiled(True)
        with pig.gpu_step(), pig.gpu_phase("forward"):
            light(advance)
        native.set_profiled(False)
        with pig.gpu_step(), pig.gpu_phase("forward"):
            heavy(advance)
        with pig.gpu_phase("epoch"), pig.gpu_step():
            light(advance)  # the phase is none of the step's
        thread = threading.Thread(target=other)
        thread.start()
        assert opened.wait(60)
        light(advance)
        sampled.set()
        thread.join()
    assert recording.run.stacks is not None
    scopes = {(one.scope, one.path) for one in phase_trees(recording.run.stacks)}
    assert (Scope.PROFILED_STEP, "forward") in scopes
    assert {at: one.samples for at, one in phases_of(recording.run).items()} == {
        ("in steps", "forward"): 1,
        ("in steps", None): 1,
        ("in steps of another thread", None): 1,
    }


def test_time_in_which_no_sample_was_wanted_is_nobodys(
    advance: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = native.stacks
    monkeypatch.setattr(native, "stacks", lambda: {**real(), "rested_ns": 40 * MS})
    run = recorded(advance)
    assert run.stacks is not None
    assert run.stacks.sampled_ns == 130 * MS
    assert "9 samples in 170 ms, which have stopped it" in run.report(verbose=True, width=120)


def test_a_fork_has_no_samples(advance: Callable[[int], None]) -> None:
    with pig.record(stacks=True) as recording:
        light(advance)
        before = native.stacks()["nodes"]
        child = os.fork()
        if child == 0:
            native.sample_stack()
            os._exit(0 if native.stacks()["nodes"] == before else 1)
        assert os.waitpid(child, 0)[1] == 0
        light(advance)
    assert recording.run.stacks is not None
    assert recording.run.stacks.sampled_ns == 20 * MS


def test_where_there_can_be_no_samples_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "start_stacks", lambda *_: False)
    with pig.record(stacks=True) as recording:
        pass
    assert "Lines of Python: this interpreter has no GIL" in next(
        iter(ASPECT.unknown(recording.run))
    )
    assert ASPECT.section(recording.run) is None
    with pig.record(stacks=False) as recording:
        pass
    assert recording.run.stacks is None
    assert not list(ASPECT.unknown(recording.run))


def test_report_page_json_and_export(advance: Callable[[int], None], tmp_path: Path) -> None:
    run = recorded(advance)
    text = run.report(verbose=True, width=120)
    assert "Lines of Python in the main thread: 9 samples in 170 ms" in text
    assert f"\n  {named(heavy)} heavy  " in text
    assert "\noutside phases, outside steps" in text
    page = html_page([run], ["run.gpurun"])
    assert "<summary>forward, 4 samples</summary>" in page
    assert "left:75.00%;width:25.00%" in page
    assert json.loads(json_text(document_of(run)))["stacks"]["samples"] == 9
    export([run], tmp_path / "run.collapsed")
    lines = (tmp_path / "run.collapsed").read_text().splitlines()
    times_us = {line.rpartition(" ")[0]: int(line.rpartition(" ")[2]) for line in lines}
    assert sum(times_us.values()) == 170_000
    of_heavy = [us for stack, us in times_us.items() if stack.startswith("forward;")]
    assert sorted(of_heavy) == [20_000, 60_000]
    with pytest.raises(ExportError, match="record it without --no-stacks"):
        export([Run()], tmp_path / "none.collapsed")


def test_the_short_report_has_three_lines_of_what_the_host_limits(
    advance: Callable[[int], None],
) -> None:
    def work() -> None:
        for _ in range(4):
            advance(1 * MS)
            native.sample_stack()
        advance(3 * MS)
        native.sample_stack()
        advance(2 * MS)
        native.sample_stack()
        advance(1 * MS)
        native.sample_stack()

    with pig.record(stacks=True) as recording:
        for _ in range(2):
            with pig.gpu_step():
                with pig.gpu_phase("forward"):
                    work()
                work()
    run = recording.run
    lines = ", ".join(
        f"{share}% {named(work, line)}" for share, line in ((40, 3), (30, 5), (20, 7))
    )
    run.environment["gpus"] = []
    text = run.report(width=500)
    assert f"Python in forward: {lines}\n" in text
    assert f"Python outside phases: {lines}\n" in text


def test_where_it_is_not_known_what_limits_a_phase_the_short_report_has_no_lines_of_it(
    advance: Callable[[int], None],
) -> None:
    run = recorded(advance)
    del run.environment["gpus"]
    assert phases_of(run)["in steps", "forward"].is_host_bound is None
    assert "Python in forward" not in run.report()


GOOD: dict[str, Any] = {
    "is_sampled": True,
    "functions": [["a.py", "f"]],
    "places": [[0, 1]],
    "nodes": [[-1, 0, 0, 0], [0, 0, 1, 10]],
}


@pytest.mark.parametrize(
    "change",
    [
        {"places": [[1, 1]]},
        {"nodes": [[-6, 0, 0, 0]]},
        {"nodes": [[-1, 1, 0, 0]]},
        {"nodes": [[-1, -2, 0, 0]]},
        {"nodes": [[0, 0, 1, 10]]},
        {"nodes": [[-1, 0, 0, 0], [0, 1, 1, 10]]},
        {"nodes": [[-1, 0, 0, 0], [0, -1, 1, 10]]},
        {"nodes": [[-1, 0, -1, 0]]},
        {"is_sampled": None},
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    assert decode_stacks(json.dumps(GOOD).encode(), ["forward"]).paths == ("forward",)
    with pytest.raises(RunFileDamagedError):
        decode_stacks(json.dumps({**GOOD, **change}).encode(), ["forward"])


PROGRAM = """
import sys
import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native


def squares():
    total = 0
    for number in range(100_000):
        total += number * number


def wait():
    import threading
    threading.Event().wait(0.02)


for step in pig.gpu_steps(range(100_000)):
    with pig.gpu_phase("forward"):
        squares()
    with pig.gpu_phase("data"):
        wait()
    roots, samples = [], {}
    for number, (parent, place, own, _) in enumerate(native.stacks()["nodes"]):
        roots.append(number if parent < 0 else roots[parent])
        samples[roots[-1]] = samples.get(roots[-1], 0) + own
    if sum(count > 10 for count in samples.values()) >= 2:
        break
"""


def test_a_real_program(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    done = launched(tmp_path, "--stacks", "train.py")
    assert done.returncode == 0, done.stderr
    run = Run.load(tmp_path / "run.gpurun")
    found = phases_of(run)
    forward, data = found["in steps", "forward"], found["in steps", "data"]
    assert forward.lines[0].function == "squares"
    assert data.lines[0].line == f"train.py:{PROGRAM[: PROGRAM.index('.wait(')].count(chr(10)) + 1}"
    assert run.stacks is not None
    assert forward.sampled_ns + data.sampled_ns <= run.stacks.sampled_ns <= run.duration_ns
