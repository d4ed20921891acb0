# SPDX-License-Identifier: Apache-2.0
"""What an NVTX tool is told, exactly, by a tool that writes it down."""

import sys
from pathlib import Path

import pytest

from tests.helpers.script import run_script

PREAMBLE = """
import threading
import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_step, gpu_steps
"""

PHASE, STEP = 1, 2


class Tool:
    """Runs programs with the tool attached and reads what it wrote."""

    def __init__(self, log: Path) -> None:
        self._log = log
        library = next(
            path for folder in sys.path if (path := Path(folder, "inject_nvtx.so")).is_file()
        )
        self._environment = {"NVTX_INJECTION64_PATH": str(library), "NVTX_TEST_LOG": str(log)}

    def run(self, source: str, **environment: str) -> None:
        run_script(PREAMBLE + source, environment={**self._environment, **environment})

    @property
    def lines(self) -> list[list[str]]:
        """The calls: thread, what, and its arguments."""
        return [line.split(" ") for line in self._log.read_text().splitlines()]

    @property
    def ranges(self) -> list[str]:
        """The calls about ranges, as "push forward", "pop", "start fetch 1", "end 1"."""
        texts = []
        for _, what, *rest in self.lines:
            if what == "push":
                texts.append(f"push {rest[1]}")
            elif what == "start":
                texts.append(f"start {rest[1]} {rest[5]}")
            elif what == "end":
                texts.append(f"end {rest[1]}")
            elif what == "pop":
                texts.append("pop")
        return texts


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    return Tool(tmp_path / "nvtx.log")


NESTED = """
with gpu_phase("a"):
    with gpu_phase("b"):
        pass
    with gpu_phase("a"):
        pass
"""


def test_phases_nest_whether_they_are_recorded_or_not(tool: Tool) -> None:
    tool.run(NESTED + "recording = pig.start()" + NESTED + "recording.stop()")

    assert tool.ranges == 2 * ["push a", "push b", "pop", "push a", "pop", "pop"]


def test_domain_categories_and_thread_name(tool: Tool) -> None:
    tool.run("""
with gpu_phase("a"):
    pass
def work():
    gpu_phase("b").begin()
    gpu_phase("b").end()
thread = threading.Thread(target=work, name="worker")
thread.start()
thread.join()
""")
    lines = tool.lines

    assert [rest for _, what, *rest in lines if what == "domain"] == [["pyinstrument_gpu"]]
    assert [rest for _, what, *rest in lines if what == "category"] == [
        ["pyinstrument_gpu", "1", "phase"],
        ["pyinstrument_gpu", "2", "step"],
        ["pyinstrument_gpu", "3", "metric"],
    ]
    threads = [(by, *rest) for by, what, *rest in lines if what == "thread"]
    assert [name for _, _, name in threads] == ["MainThread", "worker"]
    assert all(by == named for by, named, _ in threads)
    # Each range is its own thread's.
    assert {(by, rest[1]) for by, what, *rest in lines if what == "push"} == {
        (threads[0][0], "a"),
        (threads[1][0], "b"),
    }


def test_an_exception_ends_the_range(tool: Tool) -> None:
    tool.run("""
@gpu_phase("decorated")
def fail():
    with gpu_phase("inner"):
        raise ValueError
try:
    fail()
except ValueError:
    pass
with gpu_phase("after"):
    pass
""")
    assert tool.ranges == ["push decorated", "push inner", "pop", "pop", "push after", "pop"]


def test_scope_starts_and_ends_also_on_another_thread(tool: Tool) -> None:
    tool.run("""
def generator():
    with gpu_phase.scope("moved"):
        yield
moved = generator()
next(moved)
with gpu_phase("a"):
    thread = threading.Thread(target=lambda: list(moved))
    thread.start()
    thread.join()
""")
    assert tool.ranges == ["start moved 1", "push a", "end 1", "pop"]


def test_what_closes_under_others_leaves_them_open(tool: Tool) -> None:
    tool.run("""
for name in "abc":
    gpu_phase(name).begin()
gpu_phase("a").end()
gpu_phase("c").end()
gpu_phase("d").begin()
gpu_phase("b").end()
gpu_phase("d").end()
gpu_phase("never begun").end()
""")
    assert tool.ranges == [
        *("push a", "push b", "push c"),
        *("pop", "pop", "pop", "start b 1", "start c 2"),
        "end 2",
        "push d",
        "end 1",
        "pop",
    ]


def test_steps_carry_their_number(tool: Tool) -> None:
    steps = """
for _ in gpu_steps(range(2)):
    with gpu_phase("forward"):
        pass
with gpu_phase("outside"):
    pass
with gpu_step():
    pass
"""
    tool.run(steps + "recording = pig.start()" + steps + "recording.stop()")
    pushes = [(rest[1], int(rest[2]), rest[4]) for _, what, *rest in tool.lines if what == "push"]
    # The loop asks for a third item, as all loops do; that is no step.
    assert pushes == 2 * [
        *(("step", STEP, "0"), ("data", PHASE, "0"), ("forward", PHASE, "0")),
        *(("step", STEP, "1"), ("data", PHASE, "1"), ("forward", PHASE, "1")),
        ("outside", PHASE, "-"),
        ("step", STEP, "2"),
    ]
    assert tool.ranges.count("pop") == len(pushes)


STEPS = """
def stated(length, items):
    class Stated:
        def __init__(self):
            self.items = iter(range(items))
        def __iter__(self):
            return self
        def __next__(self):
            return next(self.items)
        def __len__(self):
            return length
    return Stated()

def generator():
    yield from range(2)
"""

ONE = ["push step", "push data", "pop", "pop"]
LOADERS = {
    "[]": ONE,  # how many there are is asked when the loop asks for the first
    "[1, 2]": 2 * ONE,
    "stated(2, 2)": 2 * ONE,
    "stated(3, 2)": 3 * ONE,
    # There are more than it says: only the wait for the one behind the last is not seen.
    "stated(1, 3)": [*ONE, "push step", "pop", *ONE, *ONE],
    # It does not say how many there are, so that the wait for what is not there is seen.
    "generator()": 3 * ONE,
}


def test_ranges_of_steps_end_with_the_loader_if_it_says_how_many_there_are(tool: Tool) -> None:
    loops = "".join(
        f"with gpu_phase({loader!r}.replace(' ', '')):\n    pass\n"
        f"for _ in gpu_steps({loader}):\n    pass\n"
        for loader in LOADERS
    )
    tool.run(STEPS + loops + "recording = pig.start()\n" + loops + "recording.stop()\n")

    assert tool.ranges == 2 * [
        text
        for loader, ranges in LOADERS.items()
        for text in (f"push {loader.replace(' ', '')}", "pop", *ranges)
    ]


def test_several_items_of_one_step(tool: Tool) -> None:
    tool.run("for _ in gpu_steps(range(3), accumulate=2):\n    pass\n")
    data = ["push data", "pop"]
    assert tool.ranges == ["push step", *data, *data, "pop", "push step", *data, "pop"]


def test_step_that_could_not_be_opened_takes_no_range_with_it(tool: Tool) -> None:
    tool.run("""
recording = pig.start()
with gpu_step():
    for _ in gpu_steps([]):
        pass
    with gpu_phase("forward"):
        pass
recording.stop()
""")
    inner = ["push step", "push data", "pop", "pop"]
    assert tool.ranges == ["push step", *inner, "push forward", "pop", "pop"]


def test_a_name_has_its_colour(tool: Tool) -> None:
    source = 'for name in ("forward", "backward", "forward"):\n    gpu_phase(name).begin()\n'
    tool.run(source)
    tool.run(source)

    colors = [(rest[1], rest[3]) for _, what, *rest in tool.lines if what == "push"]
    assert len(colors) == 6
    assert len(set(colors)) == 2
    assert all(color.startswith("ff") for _, color in colors)


def test_steps_are_grey_and_a_phase_of_that_name_is_not(tool: Tool) -> None:
    tool.run("""
with gpu_step(), gpu_phase("step"):
    pass
""")
    colors = [(int(rest[2]), rest[3]) for _, what, *rest in tool.lines if what == "push"]
    assert colors == [(STEP, "ff8c8c8c"), (PHASE, "ffa0cbe8")]


def test_recording_without_ranges(tool: Tool) -> None:
    tool.run("""
with gpu_phase("before"):
    with pig.record(nvtx=False):
        with gpu_phase("silent"), gpu_phase.scope("silent"):
            pass
        for _ in gpu_steps(range(1)):
            pass
with gpu_phase("after"):
    pass
""")
    assert tool.ranges == ["push before", "pop", "push after", "pop"]


@pytest.mark.parametrize("variable, value", [("NVTX_DISABLE", "1"), ("PYINSTRUMENT_GPU", "0")])
def test_switched_off(tool: Tool, tmp_path: Path, variable: str, value: str) -> None:
    tool.run(NESTED + "with pig.record():" + NESTED.replace("\n", "\n    "), **{variable: value})

    if (tmp_path / "nvtx.log").exists():
        assert tool.ranges == []


def test_readings_of_metrics_are_marks(tool: Tool) -> None:
    pytest.importorskip("torch")
    tool.run("""
import torch
metrics = pig.MetricAccumulator(topk=1, name="val")
with pig.record():
    metrics.update(torch.eye(3), torch.tensor([0, 1, 0]), torch.tensor(0.25))
""")
    marks = [rest[1:] for _, what, *rest in tool.lines if what == "mark"]

    assert [(name, category, value) for name, category, _, value in marks] == [
        ("val/count", "3", "3"),
        ("val/loss", "3", "0.25"),
        ("val/loss_last", "3", "0.25"),
        ("val/accuracy@1", "3", "0.666667"),
        ("val/nonfinite", "3", "0"),
    ]
