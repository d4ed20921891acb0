# SPDX-License-Identifier: Apache-2.0
"""Labels of compiled code, and what marks of them record."""

from itertools import combinations

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu.native import native
from pyinstrument_gpu.patching.graph_labels import Label, merged
from tests.helpers.clock import fake_clock

PATHS: list[Label] = [(), ("a",), ("b",), ("a", "c"), ("a", "d"), ("a", "c", "e")]


@pytest.mark.parametrize(
    ("paths", "label"),
    [
        ([], ()),
        ([("a", "c")], ("a", "c")),
        ([("a", "c"), ("a", "d")], ("a", "c+d")),
        ([("a", "c", "e"), ("a", "d")], ("a", "c+d")),
        ([("a", "c"), ("b",)], ("a+b",)),
        ([("a",), ("a", "c")], ("a", "c+other")),
        ([(), ("b",), ("a",)], ("a+b+other",)),
    ],
)
def test_a_kernel_is_of_all_phases_whose_operations_it_has(
    paths: list[Label], label: Label
) -> None:
    assert merged(set(paths)) == label


def test_a_label_lies_in_what_its_phases_have_in_common() -> None:
    for some in combinations(PATHS, 3):
        *around, last = merged(set(some))
        assert all(path[: len(around)] == tuple(around) for path in some)
        assert {path[len(around) :][:1] or ("other",) for path in some} == {
            (name,) for name in last.split("+")
        }


def times(run: pig.Run) -> dict[str, tuple[int, int]]:
    return {
        path: (of.count, of.host.total_ns) for path, of in run.phases.items() if of.host is not None
    }


def test_marks_divide_the_call_of_a_graph() -> None:
    marks = {
        names: native.graph_mark(*names) for names in ((), ("a",), ("a", "b"), ("a", "c"), ("d",))
    }
    graph = pig.gpu_phase("graph")
    with fake_clock() as advance_ns, pig.record() as recording:
        marks["d",]()  # in no graph
        with pig.gpu_phase("forward"):
            number = native.begin_graph(graph)
            for names in (("a", "b"), ("a",), ("a", "c"), ("d",), (), ("a", "b")):
                marks[names]()
                advance_ns(100)
            native.end_graph(number)
            advance_ns(1_000)
    assert times(recording.run) == {
        "forward": (1, 1_600),
        "forward/graph": (1, 600),
        "forward/graph/a": (2, 400),
        "forward/graph/a/b": (2, 200),
        "forward/graph/a/c": (1, 100),
        "forward/graph/d": (1, 100),
    }


def test_a_graph_that_raises_or_calls_another_ends_what_it_began() -> None:
    mark = native.graph_mark("a")
    graph = pig.gpu_phase("graph")
    with fake_clock() as advance_ns, pig.record() as recording:
        outer = native.begin_graph(graph)
        mark()
        inner = native.begin_graph(graph)
        mark()
        advance_ns(10)
        native.end_graph(inner)
        native.end_graph(inner)  # a second time
        mark()  # it is there
        advance_ns(10)
        native.end_graph(outer)
        mark()
        native.end_graph(0)
    run = recording.run
    assert times(run) == {
        "graph": (1, 20),
        "graph/a": (1, 20),
        "graph/a/graph": (1, 10),
        "graph/a/graph/a": (1, 10),
    }
    assert run.open_phases == ()
    assert run.dropped["unmatched_ends"] == 0
