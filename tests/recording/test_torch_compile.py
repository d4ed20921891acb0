# SPDX-License-Identifier: Apache-2.0
"""Phases inside torch.compile: no graph break, the right values, nothing recorded, and labels of
what is compiled while a recording marks phases."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase
from pyinstrument_gpu.patching import dynamo
from tests.helpers.script import run_script

torch = pytest.importorskip("torch")


@gpu_phase("decorated")
def double(x: Any) -> Any:
    return x * 2


def with_phase(x: Any) -> Any:
    with gpu_phase("inside"):
        return x * 2


def with_scope(x: Any) -> Any:
    with gpu_phase.scope("inside"):
        return x * 2


def with_nested_phases(x: Any) -> Any:
    with gpu_phase("outer"), gpu_phase.scope("inner"):
        y = x + 1
    with pig.gpu_phase("by attribute"):
        return y * 2 - 2


def with_decorated_function(x: Any) -> Any:
    return double(x)


def with_phase_in_a_loop(x: Any) -> Any:
    for name in ("a", "b"):
        with gpu_phase(name):
            x = x + x * 0.5 - x * 0.5
    return x * 2


FUNCTIONS = [
    with_phase,
    with_scope,
    with_nested_phases,
    with_decorated_function,
    with_phase_in_a_loop,
    double,
]


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_phase_in_a_compiled_function(function: Callable[[Any], Any]) -> None:
    compiled = torch.compile(function, backend="eager", fullgraph=True)  # no graph break
    x = torch.arange(4.0, requires_grad=True)
    with pig.record() as recording:
        for _ in range(2):  # traces, then runs what was traced
            with gpu_phase("around"):
                y = compiled(x)

    y.sum().backward()
    assert y.tolist() == [0, 2, 4, 6]
    assert x.grad.tolist() == [2, 2, 2, 2]
    assert {path: phase.count for path, phase in recording.run.phases.items()} == {"around": 2}
    assert recording.run.dropped["unmatched_ends"] == 0


class Labels:
    """A backend that compiles nothing, and keeps the names of the phases that operations have."""

    def __init__(self) -> None:
        self.graphs: list[list[tuple[str, ...]]] = []

    def __call__(self, graph: Any, _: Any) -> Any:
        self.graphs.append(
            [
                tuple(key.rpartition(":")[2] for key in node.meta.get("custom") or {})
                for node in graph.graph.nodes
                if node.op.startswith("call")
            ]
        )
        return graph.forward


def with_all_phases(x: Any) -> Any:
    with gpu_phase("outer"):
        x = x + 1
        for name in ("a", "b"):
            with gpu_phase.scope(name):
                x = double(x)
    return x - 1


def with_a_break(x: Any) -> Any:
    with gpu_phase("outer"):
        x = x + 1
        with gpu_phase("inner"):
            torch._dynamo.graph_break()
            x = x * 2
        x = x * 3
    return x


def test_operations_of_a_compiled_phase_have_its_name() -> None:
    labels = Labels()
    with pig.record():
        torch.compile(with_all_phases, backend=labels, fullgraph=True)(torch.ones(2))
    assert labels.graphs == [[()] * 4]  # as without the package, where nothing is marked
    torch._dynamo.reset()
    with pig.record(compiled_phases=True) as recording:
        compiled = torch.compile(with_all_phases, backend=labels, fullgraph=True)
        assert compiled(torch.ones(2)).tolist() == [7, 7]
    inside = [("outer", name, "decorated") for name in ("a", "b")]
    assert labels.graphs[1] == [("outer",), *inside, ()]
    assert not recording.run.phases
    compiled(torch.ones(2))
    with pig.record(compiled_phases=True):
        compiled(torch.ones(2))
    assert len(labels.graphs) == 2  # nothing is compiled again


def test_graphs_break_in_a_phase_as_they_do_without_it() -> None:
    labels = Labels()
    with pig.record(compiled_phases=True):
        compiled = torch.compile(with_a_break, backend=labels)
        assert compiled(torch.ones(2)).tolist() == [12, 12]
    assert labels.graphs == [[("outer",)], [("outer", "inner"), ("outer",)]]


def test_a_torch_that_has_other_annotations_has_no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "_can_label", False)
    labels = Labels()
    with pig.record(compiled_phases=True) as recording:
        torch.compile(with_all_phases, backend=labels, fullgraph=True)(torch.ones(2))
    assert labels.graphs == [[()] * 4]
    assert recording.run.compilations is not None
    assert recording.run.compilations.unknown_phases == (
        "Dynamo of this version of torch is not built as expected",
    )


def test_compiled_function_records_again_when_it_is_not_compiled() -> None:
    compiled = torch.compile(with_phase, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    with pig.record() as recording:
        with_phase(torch.ones(2))

    assert list(recording.run.phases) == ["inside"]


def test_exception_in_a_compiled_phase() -> None:
    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def fails(x: Any) -> Any:
        with gpu_phase("inside"):
            raise ValueError("x")

    with pig.record() as recording:
        with pytest.raises(ValueError, match="x"):
            fails(torch.ones(2))
        with gpu_phase("after"):
            pass

    assert recording.run.phases["after"].count == 1
    assert recording.run.open_phases == ()


SCRIPT = """
@pig.gpu_phase("decorated")
def double(x):
    return x * 2

def function(x):
    with pig.gpu_phase("a"), pig.gpu_phase.scope("b"):
        return double(x) + 1

compiled = torch.compile(function, backend="eager", fullgraph=True)
assert compiled(torch.ones(2)).tolist() == [3, 3]
"""


@pytest.mark.thorough
def test_torch_that_is_imported_while_it_is_recorded() -> None:
    """Also where a library looks for Dynamo, to learn whether it is there, without importing it."""
    before = """
import importlib.util
import pyinstrument_gpu as pig
recording = pig.start()
import torch
assert importlib.util.find_spec("torch._dynamo") is not None
"""
    after = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
dist.destroy_process_group()
run = recording.stop()
assert run.program_facts.ranks == 1 and run.program_facts.other_streams is not True
assert not run.phases
"""
    environment = {"GLOO_SOCKET_IFNAME": "lo"}
    done = run_script(before + SCRIPT + after, environment=environment, is_fresh=True)
    assert done.stderr == ""


def test_imported_after_dynamo() -> None:
    imports = "import torch._dynamo\nimport pyinstrument_gpu as pig"
    assert run_script(imports + SCRIPT).stderr == ""
